"""Faults in the training data and the validation data."""

from collections.abc import Callable, Iterator

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
    chance = generator(s.seed)

    def permuted(*batch: Tensor) -> tuple[Tensor, ...]:
        return *batch[:-1], batch[-1][torch.randperm(len(batch[-1]), generator=chance)]

    change_batches(s, permuted)


def change_batches(s: Setup, change: Callable[..., tuple[Tensor, ...]]) -> None:
    """Do this to each training batch, as an augmentation would."""
    epoch = s.epoch

    def changed() -> Iterator[tuple[Tensor, ...]]:
        for batch in epoch():
            yield change(*batch)

    s.epoch = changed  # type: ignore[method-assign]


# An augmentation after which the targets no longer hold. Where they still hold, as those of discs and squares do when
# the image is turned, the program is not hurt, and the case does not count.
MEANING = ("augmentation_changes_meaning", "labels_detached", "labels_shuffled")


@fault("augmentation", *MEANING)
def turned_at_random(s: Setup) -> None:
    """Each training image is turned by a random number of right angles."""
    need(s.train[0].ndim == 4 and s.train[0].shape[2] == s.train[0].shape[3] and s.train[-1].ndim < 3)
    augment(s, lambda x, chance: turned(x, torch.randint(4, (len(x),), generator=chance)))


def turned(x: Tensor, quarters: Tensor) -> Tensor:
    return torch.stack([image.rot90(int(times), (1, 2)) for image, times in zip(x, quarters, strict=True)])


@fault("augmentation", *MEANING)
def mirrored_at_random(s: Setup) -> None:
    """Each training image or signal is mirrored at random: left becomes right, late becomes early."""
    need(images_or_signals(s) and s.train[-1].ndim < 3)
    axis = 1 if s.train[0].ndim == 3 and s.train[0].shape[1] > s.train[0].shape[2] else -1  # (time, features)
    augment(s, lambda x, chance: x.where(coins(x, chance), x.flip(axis)))


@fault("augmentation", *MEANING)
def inverted_at_random(s: Setup) -> None:
    """Each training image or signal is inverted at random: light becomes dark, up becomes down."""
    need(images_or_signals(s))
    augment(s, lambda x, chance: x.where(coins(x, chance), -x))


def images_or_signals(s: Setup) -> bool:
    return (
        has_float_inputs(s) and s.train[0].ndim > 2 and s.kind not in ("reconstruction", "ranking", "pairs", "matching")
    )


def coins(x: Tensor, chance: torch.Generator) -> Tensor:
    """True for half of the samples, in a shape that goes with theirs."""
    return (torch.rand(len(x), generator=chance) < 0.5).reshape(-1, *[1] * (x.ndim - 1))


def augment(s: Setup, change: Callable[[Tensor, torch.Generator], Tensor]) -> None:
    """Change the first input of each training batch, and leave the targets as they are."""
    chance = generator(s.seed)
    change_batches(s, lambda x, *rest: (change(x, chance), *rest))


# --- leaks --------------------------------------------------------------------------------------------

# A leak makes the score of the validation better, so it is no measure of harm. What counts here is the score that the
# net has in use: on samples that it was not trained on, with the inputs that are there before the target is known.
# A leak of a part of the validation data into the training data is left out: it makes no net worse, only its score.


@fault("leakage", "leakage")
def trained_on_validation_data(s: Setup) -> None:
    """The training loop is given the validation data, a fraction of the samples that were meant for it."""
    unseen = s.train
    s.train = [each.clone() for each in s.val]
    s.in_use = lambda: s.measured_on(unseen)


@fault("leakage", "target_in_inputs")
def target_as_a_column(s: Setup) -> None:
    """One column of the table is computed from the target, and will be empty as long as the target is not known."""
    need(has_float_inputs(s) and s.train[0].ndim == 2 and s.train[-1].ndim == 1 and s.kind != "matching")
    known, spread = s.train[-1].float().mean(), s.train[-1].float().std()
    unknown = [each.clone() for each in s.val]
    unknown[0][:, -1] = 0
    for data in (s.train, s.val):
        data[0] = data[0].clone()
        data[0][:, -1] = (data[-1].float() - known) / spread
    s.in_use = lambda: s.measured_on(unknown)


@fault("leakage", "target_in_inputs")
def labels_not_shifted(s: Setup) -> None:
    """A language model is to predict the token that it is given, and not the one after it."""
    need(s.kind == "tokens" and s.train[0].shape == s.train[-1].shape)
    need(torch.equal(s.train[0][:, 1:], s.train[-1][:, :-1]))
    shifted = list(s.val)
    for data in (s.train, s.val):
        data[-1] = data[0].clone()
    s.in_use = lambda: s.measured_on(shifted)


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
