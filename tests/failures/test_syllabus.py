"""Every failure of the syllabus (its section C) is answered by a mode of the catalogue."""

import pytest

from labkit.failures.catalogue import FAILURES

SYLLABUS = {
    "C1 loss shapes": {
        "diverging, exploding": "learning_rate_too_high",
        "stuck": "learning_rate_too_low",
        "oscillating": "sharp_valley",
        "overfit": "too_few_samples",
        "underfit": "underfit",
        "sudden spike": "corrupt_batch",
        "plateau at chance": "dead_relu",
        "falls, then plateaus too high": "schedule_too_short",
        "jump at epoch boundaries": "sorted_data",
    },
    "C2 learning rate": {
        "too high": "learning_rate_too_high",
        "too low": "learning_rate_too_low",
        "high for the late phase": "learning_rate_too_high_late",
        "no warmup": "warmup_missing",
        "warmup too long": "warmup_too_long",
        "schedule that ends too early": "schedule_too_short",
        "scheduler stepped per batch": "scheduler_stepped_per_batch",
        "low-LR head start that plateaus": "learning_rate_left_low",
    },
    "C3 gradients": {
        "vanishing": "vanishing_gradients",
        "exploding, deep net with large init": "exploding_gradients",
        "exploding, RNN": "exploding_recurrent_gradients",
        "underflow": "fp16_underflow",
        "clipping too tight": "clipping_too_tight",
        "value clipping": "value_clipping_too_tight",
    },
    "C4 weights": {
        "runaway norm": "runaway_weights",
        "collapse under weight decay": "weight_collapse",
        "zero init": "zero_init",
        "symmetric init": "symmetric_init",
        "init too large": "init_too_large",
    },
    "C5 activations": {
        "dead ReLU, all": "dead_relu",
        "dead ReLU by LR": "dead_relu_by_learning_rate",
        "dead in part, behind a falling loss": "partly_dead_layer",
        "saturation": "saturated_units",
        "attention-entropy collapse": "attention_entropy_collapse",
    },
    "C6 numerics": {
        "fp16 forward overflow": "fp16_overflow",
        "fp16 backward overflow": "fp16_backward_overflow",
        "fp16 underflow": "fp16_underflow",
        "Adam state in fp16": "adam_state_in_fp16",
        "naive softmax": "naive_softmax",
        "naive log-softmax": "naive_log_softmax",
        "log(0) cross-entropy": "log_of_zero",
        "0/0": "zero_by_zero",
        "sqrt(0) gradient": "sqrt_at_zero",
        "NaN in the data": "nan_in_data",
        "in-place edits": "in_place_edit",
    },
    "C7 data": {
        "raw inputs": "inputs_not_normalised",
        "labels shuffled": "labels_shuffled",
        "labels detached from inputs": "labels_detached",
        "one class only": "single_class",
        "sorted, not shuffled": "sorted_data",
        "leakage": "leakage",
        "augmentation on val": "augmented_validation",
        "class imbalance": "class_imbalance",
        "corrupt outlier sample": "corrupt_sample",
        "validation preprocessed differently": "validation_scaled_differently",
    },
    "C8 code bugs": {
        "detached loss": "detached_loss",
        "detached without an error": "silently_detached_loss",
        "frozen parameters": "frozen_layers",
        "unregistered parameters": "unregistered_layers",
        "forgotten zero_grad": "zero_grad_missing",
        "forgotten step": "step_missing",
        "optimizer built before the head was replaced": "stale_optimizer",
        "softmax before cross-entropy": "softmax_before_cross_entropy",
        "sum instead of mean": "summed_loss",
        "batch norm in train mode at eval": "batch_norm_in_train_mode_at_validation",
        "dropout in train mode at eval": "dropout_at_validation",
        "eval mode during training": "eval_mode_in_training",
        "batch norm with tiny batches": "tiny_batch_norm",
        "running statistics poisoned": "poisoned_batch_norm",
        "resume without state": "resumed_without_state",
        "metric bug": "metric_broadcast",
        "no no_grad at validation": "validation_with_gradients",
    },
    "C9 generalisation": {
        "overfit on 100 samples": "too_few_samples",
        "underfit": "underfit",
        "validation loss rises, accuracy flat": "overconfidence",
        "loss and accuracy disagree": "validation_scaled_differently",
        "sharp versus flat minima": "sharp_minimum",
    },
    "C10 landscape": {"plateau": "plateau", "saddle point": "saddle_point", "sharp valley": "sharp_valley"},
    "C11 distributed": {"no set_epoch": "sampler_without_set_epoch", "no sampler": "sampler_missing"},
}
ROWS = [(row, failure, name) for row, failures in SYLLABUS.items() for failure, name in failures.items()]


@pytest.mark.parametrize(("row", "failure", "name"), ROWS)
def test_it_has_a_mode(row, failure, name):
    assert name in FAILURES, f"{row}: {failure}"


def test_the_catalogue_is_as_large_as_promised():
    assert len(FAILURES) >= 55
