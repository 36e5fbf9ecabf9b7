"""Claims about learning rates, schedules and optimizers."""

import functools

import numpy as np

from labkit.diagnosis.evaluation.folklore import measures
from labkit.diagnosis.evaluation.folklore.claim import (
    HARMLESS,
    HELPS,
    HURTS,
    NO_DIFFERENCE,
    Claim,
    Range,
    Setting,
    at_least,
    at_most,
)  # fmt: skip
from labkit.diagnosis.evaluation.folklore.claims.twins import ADAM, BASE, DEEP
from labkit.tools.lr_finder import find_lr
from labkit.training.loop import few_threads
from labkit.training.recipe import Recipe
from labkit.training.state import TrainingState, seeded


def at_the_steepest_point(recipe: Recipe, seed: int) -> Recipe:
    """With the learning rate at which the loss of a range test falls most steeply."""
    recipe = recipe.but(seed=seed)
    state = TrainingState(recipe)
    with seeded(seed), few_threads():
        test = find_lr(state.model, recipe.loss, tuple(state.data.train), state.optimizer)
    descent = np.gradient(np.where(np.isfinite(test.smoothed), test.smoothed, np.inf), np.log(test.lrs))
    return recipe.but(lr=float(test.lrs[int(np.nanargmin(descent))]))


@functools.cache
def sgd_at_the_steepest_point(seed: int) -> Recipe:
    return at_the_steepest_point(BASE, seed)


@functools.cache
def adam_at_the_steepest_point(seed: int) -> Recipe:
    return at_the_steepest_point(ADAM, seed)


SMALL_BATCH = BASE.but(batch_size=64, lr=0.05, steps=640)  # 41,000 images, as all of its settings

claims = (
    Claim(
        "linear_scaling_rule",
        "k times the batch size: k times the learning rate, and the result stays the same.",
        source="Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour (2017)",
        predicts=HARMLESS,
        settings=(
            Setting("64 to 256 images", SMALL_BATCH.but(batch_size=256, lr=0.2, steps=160), SMALL_BATCH),
            Setting("64 to 1,024 images", SMALL_BATCH.but(batch_size=1024, lr=0.8, steps=40), SMALL_BATCH),
        ),
        note="The same number of images in each run; no warm-up.",
    ),
    Claim(
        "scale_adam_by_the_square_root",
        "With Adam, scale the learning rate with the square root of the batch size, not linearly.",
        source="Malladi et al., On the SDEs and Scaling Rules for Adaptive Gradient Algorithms (2022)",
        predicts=HELPS,
        settings=(
            Setting(
                "64 to 1,024 images, from 0.001",
                ADAM.but(batch_size=1024, lr=0.004, steps=40),
                ADAM.but(batch_size=1024, lr=0.016, steps=40),
            ),
        ),
        note="The treated run follows the square root, the control the linear rule.",
    ),
    Claim(
        "adam_needs_little_tuning",
        "Adam needs little tuning: its learning rate may be wrong by a factor of ten.",
        source="Kingma and Ba, Adam: A Method for Stochastic Optimization (2015)",
        predicts=HARMLESS,
        settings=(
            Setting("ten times lower", ADAM.but(lr=0.0003), ADAM),
            Setting("ten times higher", ADAM.but(lr=0.03), ADAM),
        ),
    ),
    Claim(
        "adam_at_3e_4",
        "3e-4 is the best learning rate for Adam.",
        source="Karpathy, on Twitter (2016)",
        predicts=at_least(0),
        settings=(
            Setting("against 0.003, 400 steps", ADAM.but(lr=0.0003), ADAM),
            Setting(
                "against 0.003, 10 layers", DEEP.but(optimizer="adam", lr=0.0003), DEEP.but(optimizer="adam", lr=0.003)
            ),
        ),
    ),
    Claim(
        "adam_generalises_worse",
        "Adam generalises worse than SGD.",
        source="Wilson et al., The Marginal Value of Adaptive Gradient Methods in Machine Learning (2017)",
        predicts=HURTS,
        settings=(
            Setting("against plain SGD", ADAM, BASE),
            Setting("against SGD with momentum 0.9", ADAM, BASE.but(lr=0.03, momentum=0.9)),
            Setting("against plain SGD, 1,000 images", ADAM.but(samples=1000), BASE.but(samples=1000)),
        ),
    ),
    Claim(
        "momentum_multiplies_the_rate",
        "Momentum 0.9 is a learning rate ten times higher: divide it by ten, and little changes.",
        predicts=NO_DIFFERENCE,
        settings=(
            Setting("0.1 against 0.01 with momentum", BASE.but(lr=0.01, momentum=0.9), BASE),
            Setting("0.5 against 0.05 with momentum", BASE.but(lr=0.05, momentum=0.9), BASE.but(lr=0.5)),
        ),
    ),
    Claim(
        "momentum_helps",
        "Momentum 0.9 makes SGD learn more in the same number of steps.",
        source="Sutskever et al., On the importance of initialization and momentum in deep learning (2013)",
        predicts=HELPS,
        settings=(
            Setting("same learning rate, 0.03", BASE.but(lr=0.03, momentum=0.9), BASE.but(lr=0.03)),
            Setting("same effective rate, 0.3", BASE.but(lr=0.03, momentum=0.9), BASE.but(lr=0.3)),
        ),
    ),
    Claim(
        "smaller_steps_for_longer",
        "A lower learning rate only takes longer: a quarter of it for four times as many steps ends as well.",
        predicts=HARMLESS,
        seeds=3,
        settings=(
            Setting("SGD", BASE.but(lr=0.025, steps=1600), BASE),
            Setting("Adam", ADAM.but(lr=0.00075, steps=1600), ADAM),
        ),
    ),
    Claim(
        "too_high_means_nan",
        "A learning rate that is a hundred times too high gives NaN.",
        measure=measures.DIVERGED,
        seeds=3,
        predicts=at_least(100),
        settings=(
            Setting("SGD at 10, 2 layers", BASE.but(lr=10.0, steps=200)),
            Setting("SGD at 10, 3 layers", BASE.but(lr=10.0, steps=200, depth=3)),
            Setting("Adam at 0.3, 3 layers", ADAM.but(lr=0.3, steps=200, depth=3)),
        ),
    ),
    Claim(
        "steepest_point_of_the_range_test",
        "The steepest point of a learning-rate range test is a good learning rate.",
        source="Smith, Cyclical Learning Rates for Training Neural Networks (2017), as it is usually read",
        predicts=HARMLESS,
        settings=(
            Setting("SGD, against 0.1", sgd_at_the_steepest_point, BASE),
            Setting("Adam, against 0.003", adam_at_the_steepest_point, ADAM),
        ),
        note="Against the rates that a scan by hand found.",
    ),
    Claim(
        "decay_the_rate",
        "Let the learning rate decay: it ends better than at a constant rate.",
        source="Robbins and Monro, A Stochastic Approximation Method (1951)",
        predicts=HELPS,
        settings=(
            Setting("cosine, SGD from 0.1", BASE.but(schedule="cosine"), BASE),
            Setting("cosine, SGD from 0.5", BASE.but(schedule="cosine", lr=0.5), BASE.but(lr=0.5)),
            Setting("cosine, Adam from 0.003", ADAM.but(schedule="cosine"), ADAM),
            Setting("cosine, Adam from 0.03", ADAM.but(schedule="cosine", lr=0.03), ADAM.but(lr=0.03)),
        ),
    ),
    Claim(
        "cosine_beats_step_decay",
        "Cosine decay beats decay in steps.",
        source="Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts (2017)",
        predicts=HELPS,
        settings=(
            Setting(
                "halved after each epoch, SGD from 0.5",
                BASE.but(schedule="cosine", lr=0.5),
                BASE.but(schedule="exponential", decay=0.5, lr=0.5),
            ),
            Setting(
                "halved after each epoch, Adam from 0.003",
                ADAM.but(schedule="cosine"),
                ADAM.but(schedule="exponential", decay=0.5),
            ),
        ),
    ),
    Claim(
        "super_convergence",
        "One cycle up to ten times the learning rate reaches in a quarter of the steps what a constant rate reaches.",
        source="Smith and Topin, Super-Convergence: Very Fast Training of Neural Networks Using Large Learning "
        "Rates (2018)",
        predicts=HARMLESS,
        settings=(
            Setting("SGD, up to 1", BASE.but(schedule="one_cycle", lr=1.0, steps=100), BASE),
            Setting("Adam, up to 0.03", ADAM.but(schedule="one_cycle", lr=0.03, steps=100), ADAM),
        ),
    ),
    Claim(
        "adam_needs_warmup",
        "Adam needs a warm-up.",
        source="Liu et al., On the Variance of the Adaptive Learning Rate and Beyond (2019)",
        predicts=HELPS,
        settings=(
            Setting("2 layers, 0.003", ADAM.but(schedule="warmup_cosine"), ADAM.but(schedule="cosine")),
            Setting(
                "2 layers, 0.03", ADAM.but(schedule="warmup_cosine", lr=0.03), ADAM.but(schedule="cosine", lr=0.03)
            ),
        ),
        note="40 steps of warm-up, then cosine decay, against cosine decay alone.",
    ),
    Claim(
        "warmup_permits_any_rate",
        "With a warm-up you can train at a rate that diverges without one.",
        source="Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour (2017), as it is usually read",
        predicts=at_least(-2),
        settings=(
            Setting("SGD at 1, 3 layers", BASE.but(depth=3, lr=1.0, schedule="warmup_cosine"), BASE.but(depth=3)),
            Setting("SGD at 10, 3 layers", BASE.but(depth=3, lr=10.0, schedule="warmup_cosine"), BASE.but(depth=3)),
        ),
        note="Against 0.1 without a warm-up.",
    ),
    Claim(
        "update_ratio_1e_3",
        "In a healthy run an update is about 0.001 of the weights.",
        source="Karpathy, CS231n course notes (2015)",
        measure=measures.UPDATE_RATIO,
        predicts=Range(-3.3, -2.7),
        settings=(
            Setting("SGD at 0.1", BASE),
            Setting("Adam at 0.003", ADAM),
            Setting("Adam at 0.0003", ADAM.but(lr=0.0003)),
        ),
        note="-3 is 0.001; the range is a factor of two to either side.",
    ),
    Claim(
        "gradients_fall_smoothly",
        "In a healthy run the gradient norm falls from the start.",
        measure=measures.PEAK_GRADIENT,
        predicts=at_most(0.1),
        settings=(Setting("SGD", BASE), Setting("Adam", ADAM), Setting("10 layers, He init", DEEP)),
        note="0.1 is a peak of 1.26 times the first norm.",
    ),
    Claim(
        "weights_level_off",
        "In a healthy run the weight norm levels off.",
        measure=measures.LATE_GROWTH,
        predicts=at_most(1),
        settings=(
            Setting("SGD", BASE),
            Setting("Adam", ADAM),
            Setting("Adam, cosine decay", ADAM.but(schedule="cosine")),
        ),
    ),
    Claim(
        "epsilon_does_not_matter",
        "Adam's epsilon is only there to avoid a division by zero: any small value will do.",
        predicts=NO_DIFFERENCE,
        settings=(
            Setting("0.00001 instead of 1e-8", ADAM.but(adam_eps=1e-5), ADAM),
            Setting("0.001 instead of 1e-8", ADAM.but(adam_eps=1e-3), ADAM),
        ),
    ),
)
