"""Faults in the training data and the validation data."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from labkit.diagnosis.evaluation.foreign.operators import (
    fault,
    has_classes,
    has_float_inputs,
    modules_of,
    need,
    scaled,
)
from labkit.diagnosis.evaluation.foreign.setup import Setup, generator

# --- data ---------------------------------------------------------------------------------------------


@fault("data", "labels_shuffled", "labels_detached")
def shuffled_labels(s: Setup) -> None:
    """The training targets belong to other inputs."""
    need(s.kind not in ("matching",))
    s.train[-1] = s.train[-1][torch.randperm(len(s.train[-1]), generator=generator(s.seed))]


@fault("data", "labels_shuffled", "labels_detached")
def partners_shuffled(s: Setup) -> None:
    """Of pairs that belong together one side is shuffled."""
    need(s.kind == "matching")
    s.train[1] = s.train[1][torch.randperm(len(s.train[1]), generator=generator(s.seed))]


@fault("data", "labels_shuffled", "labels_detached")
def targets_one_row_late(s: Setup) -> None:
    """Inputs and targets are misaligned by one: each input has the target of the row before."""
    need(s.kind not in ("matching",))
    s.train[-1] = s.train[-1].roll(1, 0)


@fault("data", "labels_shuffled", "labels_detached")
def most_labels_wrong(s: Setup) -> None:
    """Heavy label noise: nine of ten training targets come from another sample."""
    need(s.kind not in ("matching",))
    chance = generator(s.seed)
    targets = s.train[-1]
    wrong = torch.nonzero(torch.rand(len(targets), generator=chance) < 0.9).flatten()
    noisy = targets.clone()
    noisy[wrong] = targets[wrong[torch.randperm(len(wrong), generator=chance)]]
    s.train[-1] = noisy


@fault("data", "labels_detached", "labels_shuffled")
def targets_permuted_in_each_batch(s: Setup) -> None:
    """An augmentation puts the inputs of each batch in a new order and leaves the targets as they were."""
    need(s.kind not in ("matching",))
    chance, epoch = generator(s.seed), s.epoch

    def permuted() -> Iterator[tuple[Tensor, ...]]:
        for *inputs, targets in epoch():
            yield *inputs, targets[torch.randperm(len(targets), generator=chance)]

    s.epoch = permuted  # type: ignore[method-assign]


@fault("data", "labels_detached", "labels_shuffled")
def flipped_without_the_mask(s: Setup) -> None:
    """An augmentation flips the images of a segmentation, top to bottom, and not their masks."""
    need(s.train[0].ndim == 4 and s.train[-1].ndim == 3 and s.kind in ("binary", "pixels"))
    s.train[0] = s.train[0].flip(2)


@fault("data", "inputs_not_normalised")
def inputs_times_1000(s: Setup) -> None:
    """The inputs are 1000 times too large, in training and in validation."""
    need(has_float_inputs(s) and s.kind != "reconstruction")
    for data in (s.train, s.val):
        scaled(data, lambda x: 1000 * x)


@fault("data", "inputs_not_normalised")
def inputs_far_from_zero(s: Setup) -> None:
    """The inputs are between 0 and 255 or so: neither centred nor scaled."""
    need(has_float_inputs(s) and s.kind != "reconstruction")
    for data in (s.train, s.val):
        scaled(data, lambda x: 40 * x + 128)


@fault("data", "inputs_not_normalised", "targets_not_scaled")
def everything_times_1000(s: Setup) -> None:
    """Inputs and targets of an autoencoder are 1000 times too large."""
    need(s.kind == "reconstruction")
    for data in (s.train, s.val):
        data[:] = [1000 * each for each in data]


@fault("data", "inputs_scaled_twice", "inputs_not_normalised")
def inputs_divided_twice(s: Setup) -> None:
    """The inputs are divided by 255 twice."""
    need(has_float_inputs(s) and s.kind != "reconstruction")
    for data in (s.train, s.val):
        scaled(data, lambda x: x / 255**2)


@fault("data", "blank_inputs")
def inputs_all_zero(s: Setup) -> None:
    """The training inputs are all zero."""
    need(has_float_inputs(s) and s.kind != "reconstruction")
    scaled(s.train, torch.zeros_like)


@fault("data", "nan_in_data")
def one_missing_value(s: Setup) -> None:
    """One value of the training inputs is NaN."""
    need(has_float_inputs(s))
    x = s.train[0].clone(memory_format=torch.contiguous_format)
    x.flatten(1)[len(x) // 2, 0] = float("nan")
    if s.kind == "reconstruction":
        s.train[-1] = x.clone()
    s.train[0] = x


@fault("data", "corrupt_sample", "corrupt_batch")
def one_huge_sample(s: Setup) -> None:
    """One training sample is 100,000 times too large."""
    need(has_float_inputs(s) and s.kind != "reconstruction")
    x = s.train[0].clone(memory_format=torch.contiguous_format)
    x[len(x) // 2] *= 1e5
    s.train[0] = x


@fault("data", "too_few_samples", "overconfidence")
def twelve_samples(s: Setup) -> None:
    """Only twelve training samples."""
    s.train = [each[:12] for each in s.train]
    s.batch_size = 6


@fault("data", "class_imbalance", "single_class")
def one_class_rules(s: Setup) -> None:
    """Nearly all training samples are of one class; the validation data are as before."""
    need(s.kind == "classes" or (s.kind == "binary" and s.train[-1].ndim == 1))
    rare = torch.nonzero(s.train[-1] != 0).flatten()[:6]
    chosen = torch.cat([torch.nonzero(s.train[-1] == 0).flatten(), rare]).sort().values
    s.train = [each[chosen] for each in s.train]


@fault("data", "sorted_data")
def sorted_by_target(s: Setup) -> None:
    """The training data are sorted by target and not shuffled."""
    need(s.train[-1].ndim == 1 and s.kind not in ("matching",))
    order = s.train[-1].argsort(stable=True)
    s.train, s.shuffle = [each[order] for each in s.train], False


@fault("data", "batch_too_small", "learning_rate_too_high_late", "learning_rate_too_high")
def batch_of_one(s: Setup) -> None:
    """One sample per batch, at the same learning rate."""
    need(not modules_of(s, nn.BatchNorm1d) and s.kind != "matching")
    s.batch_size = 1


@fault("validation", "validation_scaled_differently")
def validation_not_normalised(s: Setup) -> None:
    """The validation inputs are not normalised as the training inputs are."""
    need(has_float_inputs(s) and s.kind != "reconstruction")
    scaled(s.val, lambda x: 40 * x + 128)


@fault("validation", "labels_differ_at_validation")
def other_class_order(s: Setup) -> None:
    """The classes of the validation data have another order."""
    need(has_classes(s))
    labels = s.val[-1]
    classes = int(labels.max()) + 1
    s.val[-1] = torch.where(labels >= 0, (labels + 1) % classes, labels)


@fault("validation", "columns_differ_at_validation")
def shuffled_columns(s: Setup) -> None:
    """The columns of a table have another order in the validation data."""
    need(has_float_inputs(s) and s.train[0].ndim == 2)
    s.val[0] = s.val[0].flip(1)
