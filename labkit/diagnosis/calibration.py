"""How far a verdict can be trusted: how often each name was correct on programs that are no recipes of the lab."""

# (correct, given) as the first diagnosis on the development split and the retired split of the foreign programs, 984
# runs with a verified fault and 392 healthy ones (a diagnosis of which is wrong). The signatures were tuned on them, so
# each is pulled towards PRIOR, as if WEIGHT more verdicts had been given. Both were chosen so that the mean confidence
# is what was correct on the retired programs when they were seen for the first time: 114 of 126, 90 %.
PRIOR, WEIGHT = 0.6, 6
MEASURED: dict[str, tuple[int, int]] = {
    "activation_on_outputs": (23, 23), "batch_norm_statistics_frozen": (1, 1), "batch_too_small": (11, 11),
    "blank_inputs": (22, 22), "class_imbalance": (12, 12), "clipping_too_tight": (2, 2), "corrupt_sample": (8, 8),
    "dead_branch": (0, 1), "dead_relu": (15, 19), "dead_relu_by_learning_rate": (1, 2), "detached_loss": (32, 32),
    "dropout_at_validation": (2, 2), "exploding_recurrent_gradients": (2, 2), "frozen_layers": (19, 23),
    "gradient_ascent": (60, 61), "head_init_too_large": (6, 6), "init_too_large": (19, 19),
    "inputs_not_normalised": (13, 13), "inputs_scaled_twice": (22, 22), "labels_shuffled": (27, 27),
    "learning_rate_left_low": (25, 26), "learning_rate_too_high": (29, 34), "learning_rate_too_high_late": (1, 2),
    "learning_rate_too_low": (32, 32), "loss_does_not_fit": (17, 19), "missing_nonlinearity": (6, 6),
    "nan_in_data": (25, 25), "penalty_too_strong": (16, 16), "runaway_weights": (23, 25), "saturated_units": (2, 2),
    "schedule_too_short": (1, 1), "scheduler_stepped_per_batch": (29, 29), "silently_detached_loss": (32, 33),
    "softmax_before_cross_entropy": (1, 1), "softmax_over_batch": (5, 5), "sorted_data": (5, 5),
    "sqrt_at_zero": (30, 30), "stale_optimizer": (33, 33), "step_missing": (31, 32), "summed_loss": (1, 1),
    "symmetric_init": (23, 23), "tiny_batch_norm": (2, 3), "too_few_samples": (20, 20), "too_much_dropout": (5, 5),
    "underfit": (13, 13), "unregistered_layers": (3, 3), "validation_scaled_differently": (22, 22),
    "value_clipping_too_tight": (2, 2), "vanishing_gradients": (17, 17), "weight_collapse": (39, 39),
    "zero_grad_missing": (24, 26), "zero_init": (28, 28),
}  # fmt: skip


def confidence(name: str, said: float) -> float:
    """Of a verdict with this name; what its signature says itself where that was never measured."""
    if name not in MEASURED:
        return said
    correct, given = MEASURED[name]
    return (correct + PRIOR * WEIGHT) / (given + WEIGHT)
