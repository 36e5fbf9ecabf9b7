"""Claims about data, batches, regularisation, losses and calibration."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.diagnosis.evaluation.folklore import measures
from labkit.diagnosis.evaluation.folklore.claim import (
    HELPS,
    HURTS,
    Claim,
    Range,
    Setting,
    at_least,
    at_most,
    within,
)  # fmt: skip
from labkit.diagnosis.evaluation.folklore.claims.twins import ADAM, BASE, CURVE, FEW, NORMED
from labkit.failures.code.softmax_before_cross_entropy import mlp_with_softmax
from labkit.failures.data.sorted_data import sorted_by_class

LARGE_BATCH = "Keskar et al., On Large-Batch Training for Deep Learning: Generalization Gap and Sharp Minima (2017)"
FULL_BATCH = BASE.but(samples=1000, batch_size=1000, steps=300)
SMALL_BATCH = BASE.but(samples=1000, batch_size=16, steps=600)
ONE_BATCH = ADAM.but(samples=32, batch_size=32, lr=0.001, steps=120)  # the usual sanity check


def smoothed_cross_entropy(outputs, targets):
    """Label smoothing of 0.1."""
    return cross_entropy(outputs, targets, label_smoothing=0.1)


def in_file_order(split, recipe, generator):
    """The same order in every epoch: that of the file, which is a random one."""
    while True:
        for x, y in zip(split.x.split(recipe.batch_size), split.y.split(recipe.batch_size), strict=True):
            if len(y) == recipe.batch_size:
                yield x, y


def sgd_without_bias_decay(model: nn.Module, recipe) -> torch.optim.Optimizer:
    """Weight decay on matrices alone."""
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum)


claims = (
    Claim(
        "normalise_inputs",
        "Normalise your inputs to mean 0 and standard deviation 1.",
        source="LeCun, Bottou, Orr and Mueller, Efficient BackProp (1998)",
        predicts=HELPS,
        settings=(
            Setting("against 0 to 1, SGD", BASE, BASE.but(inputs="unit")),
            Setting("against 0 to 1, Adam", ADAM, ADAM.but(inputs="unit")),
            Setting("against 0 to 255, SGD", BASE, BASE.but(inputs="raw")),
            Setting("against 0 to 255, Adam", ADAM, ADAM.but(inputs="raw")),
        ),
    ),
    Claim(
        "shuffle_every_epoch",
        "Shuffle again in every epoch, or you lose accuracy.",
        predicts=HELPS,
        settings=(
            Setting("against the same random order in every epoch", BASE, BASE.but(batches=in_file_order)),
            Setting("against sorted by class", BASE, BASE.but(batches=sorted_by_class)),
        ),
    ),
    Claim(
        "more_data_beats_regularisation",
        "Twice the data beats any regulariser.",
        predicts=HELPS,
        settings=(
            Setting("2,000 images, against 1,000 with dropout 0.5", FEW.but(samples=2000), FEW.but(dropout=0.5)),
            Setting(
                "2,000 images, against 1,000 with weight decay",
                FEW.but(samples=2000),
                FEW.but(optimizer="adamw", weight_decay=0.1),
            ),
            Setting("2,000 images, against 1,000 augmented", FEW.but(samples=2000), FEW.but(augment="affine")),
        ),
        note="Shifts and rotations of up to 10 % and 15 degrees.",
    ),
    Claim(
        "dropout_against_overfitting",
        "Dropout 0.5 raises the accuracy of a net that overfits.",
        source="Srivastava et al., Dropout: A Simple Way to Prevent Neural Networks from Overfitting (2014)",
        predicts=HELPS,
        settings=(
            Setting("100 images", FEW.but(samples=100, dropout=0.5), FEW.but(samples=100)),
            Setting("1,000 images", FEW.but(dropout=0.5), FEW),
            Setting("1,000 images, width 512", FEW.but(dropout=0.5, width=512), FEW.but(width=512)),
        ),
    ),
    Claim(
        "weight_decay_generalises",
        "Weight decay raises the validation accuracy.",
        source="Krogh and Hertz, A Simple Weight Decay Can Improve Generalization (1991)",
        predicts=HELPS,
        settings=(
            Setting("SGD, 0.001", BASE.but(samples=1000, weight_decay=0.001), BASE.but(samples=1000)),
            Setting("SGD, 0.01", BASE.but(samples=1000, weight_decay=0.01), BASE.but(samples=1000)),
            Setting("AdamW, 0.1", FEW.but(optimizer="adamw", weight_decay=0.1), FEW),
        ),
        note="1,000 images.",
    ),
    Claim(
        "adamw_beats_adam_with_l2",
        "Decoupled weight decay (AdamW) beats the L2 penalty in Adam.",
        source="Loshchilov and Hutter, Decoupled Weight Decay Regularization (2019)",
        predicts=HELPS,
        settings=(
            Setting("decay 0.001", FEW.but(optimizer="adamw", weight_decay=0.001), FEW.but(weight_decay=0.001)),
            Setting("decay 0.1", FEW.but(optimizer="adamw", weight_decay=0.1), FEW.but(weight_decay=0.1)),
        ),
        note="1,000 images.",
    ),
    Claim(
        "no_decay_on_biases",
        "Weight decay on biases hurts: leave them out.",
        source="He et al., Bag of Tricks for Image Classification with Convolutional Neural Networks (2019)",
        predicts=HELPS,
        settings=(
            Setting(
                "SGD, 0.001",
                BASE.but(weight_decay=0.001, optimizer=sgd_without_bias_decay),
                BASE.but(weight_decay=0.001),
            ),
            Setting(
                "SGD, 0.01, batch norm",
                NORMED.but(weight_decay=0.01, optimizer=sgd_without_bias_decay),
                NORMED.but(weight_decay=0.01),
            ),
        ),
    ),
    Claim(
        "early_stopping_is_weight_decay",
        "Early stopping does what weight decay does.",
        source="Goodfellow, Bengio, Courville, Deep Learning (2016), section 7.8",
        measure=measures.LOSS,
        control_measure=measures.BEST_LOSS,
        predicts=within(0.03),
        settings=(
            Setting("SGD, decay 0.01", BASE.but(samples=1000, weight_decay=0.01), BASE.but(samples=1000, **CURVE)),
            Setting(
                "SGD with momentum 0.9, decay 0.01",
                BASE.but(samples=1000, lr=0.03, momentum=0.9, weight_decay=0.01),
                BASE.but(samples=1000, lr=0.03, momentum=0.9, **CURVE),
            ),
            Setting("AdamW, decay 0.1", FEW.but(optimizer="adamw", weight_decay=0.1), FEW.but(**CURVE)),
        ),
        note="The last loss with weight decay, minus the lowest loss without. 1,000 images.",
    ),
    Claim(
        "rising_loss_means_falling_accuracy",
        "Once the validation loss rises, the net gets worse: its accuracy falls.",
        measure=measures.AFTER_LOWEST_LOSS,
        predicts=HURTS,
        settings=(
            Setting("100 images, Adam", FEW.but(samples=100, **CURVE)),
            Setting("1,000 images, Adam", FEW.but(**CURVE)),
            Setting("1,000 images, 20 % wrong labels", FEW.but(label_noise=0.2, **CURVE)),
        ),
        note="The accuracy at the end, minus that at the lowest validation loss.",
    ),
    Claim(
        "bigger_nets_overfit",
        "A bigger net overfits more: on few images it is worse.",
        predicts=HURTS,
        settings=(
            Setting("512 units against 32, 1,000 images", FEW.but(width=512), FEW.but(width=32)),
            Setting(
                "512 units against 32, 100 images", FEW.but(samples=100, width=512), FEW.but(samples=100, width=32)
            ),
        ),
    ),
    Claim(
        "augmentation_helps",
        "Data augmentation raises the accuracy.",
        source="Shorten and Khoshgoftaar, A survey on Image Data Augmentation for Deep Learning (2019)",
        predicts=HELPS,
        settings=(Setting("1,000 images, 400 steps", FEW.but(augment="affine"), FEW),),
        note="Shifts and rotations of up to 10 % and 15 degrees.",
    ),
    Claim(
        "robust_to_label_noise",
        "Nets are robust to label noise: with 20 % wrong labels they lose at most two points.",
        source="Rolnick et al., Deep Learning is Robust to Massive Label Noise (2017)",
        predicts=at_least(-2),
        settings=(
            Setting("10,000 images, SGD", BASE.but(label_noise=0.2), BASE),
            Setting("1,000 images, Adam", FEW.but(label_noise=0.2), FEW),
        ),
    ),
    Claim(
        "label_smoothing_calibrates",
        "Label smoothing improves calibration.",
        source="Müller, Kornblith and Hinton, When Does Label Smoothing Help? (2019)",
        measure=measures.MISCALIBRATION,
        predicts=at_most(-0.5),
        settings=(
            Setting("10,000 images, SGD", BASE.but(loss=smoothed_cross_entropy), BASE),
            Setting("1,000 images, Adam: an overconfident net", FEW.but(loss=smoothed_cross_entropy), FEW),
        ),
        note="The distance of the mean confidence from the accuracy.",
    ),
    Claim(
        "label_smoothing_raises_accuracy",
        "Label smoothing raises the accuracy.",
        source="Szegedy et al., Rethinking the Inception Architecture for Computer Vision (2016)",
        predicts=HELPS,
        settings=(
            Setting("10,000 images, SGD", BASE.but(loss=smoothed_cross_entropy), BASE),
            Setting("1,000 images, Adam", FEW.but(loss=smoothed_cross_entropy), FEW),
        ),
    ),
    Claim(
        "cross_entropy_beats_squared_error",
        "For classification, cross-entropy beats the squared error.",
        source="often said; contested by Hui and Belkin, Evaluation of Neural Architectures Trained with Square "
        "Loss vs Cross-Entropy in Classification Tasks (2020)",
        predicts=HELPS,
        settings=(
            Setting("SGD, both at 0.1", BASE, BASE.but(loss="mean_squared_error")),
            Setting("SGD, squared error at 2", BASE, BASE.but(loss="mean_squared_error", lr=2.0)),
            Setting("Adam", ADAM, ADAM.but(loss="mean_squared_error")),
        ),
    ),
    Claim(
        "large_batches_generalise_worse",
        "Large batches generalise worse.",
        source=LARGE_BATCH,
        predicts=HURTS,
        seeds=3,
        settings=(
            Setting(
                "1,000 against 16, as many epochs",
                FULL_BATCH.but(steps=10),
                SMALL_BATCH,
            ),
            Setting(
                "1,000 against 16, both until they fit",
                FULL_BATCH,
                SMALL_BATCH,
            ),
            Setting(
                "the same at 0.3",
                FULL_BATCH.but(lr=0.3),
                SMALL_BATCH,
            ),
        ),
        note="1,000 images, SGD at 0.1.",
    ),
    Claim(
        "large_batches_find_sharp_minima",
        "Large batches end in sharper minima.",
        source=LARGE_BATCH,
        measure=measures.CURVATURE,
        predicts=at_least(1),
        seeds=3,
        settings=(
            Setting(
                "1,000 against 16, both until they fit",
                FULL_BATCH,
                SMALL_BATCH,
            ),
            Setting(
                "the same at 0.3",
                FULL_BATCH.but(lr=0.3),
                SMALL_BATCH,
            ),
        ),
        note="1,000 images, SGD at 0.1; a doubling of the largest eigenvalue or more.",
    ),
    Claim(
        "half_the_batch_twice_the_noise",
        "Half the batch makes the loss curve twice as noisy.",
        measure=measures.LOSS_NOISE,
        predicts=Range(0.75, 1.25),
        settings=(
            Setting("64 against 128 images", BASE.but(batch_size=64), BASE),
            Setting("128 against 256 images", BASE, BASE.but(batch_size=256)),
        ),
        note="1 doubling is twice the standard deviation; a square-root law gives 0.5.",
    ),
    Claim(
        "one_batch_test_finds_bugs",
        "A net that can overfit one batch has no bug in its data or its loss.",
        source="Karpathy, A Recipe for Training Neural Networks (2019), as it is usually read",
        measure=measures.MEMORISED,
        predicts=at_most(0),
        settings=(
            Setting("all labels wrong", ONE_BATCH.but(label_noise=1.0)),
            Setting("inputs from 0 to 255", ONE_BATCH.but(inputs="raw")),
            Setting("a softmax before cross-entropy", ONE_BATCH.but(model=mlp_with_softmax)),
        ),
        note="The test finds a bug if it fails: each setting has one. 120 steps, passed below a loss of 0.05.",
    ),
    Claim(
        "autocast_costs_accuracy",
        "Training in 16 bits costs accuracy.",
        predicts=HURTS,
        seeds=3,
        settings=(
            Setting("bf16 autocast", BASE.but(precision="bf16", steps=200), BASE.but(steps=200)),
            Setting("weights in bf16 too", BASE.but(precision="bf16_pure", steps=200), BASE.but(steps=200)),
            Setting(
                "weights in bf16 too, at 0.003",
                BASE.but(precision="bf16_pure", steps=200, lr=0.003),
                BASE.but(steps=200, lr=0.003),
            ),
        ),
    ),
    Claim(
        "convolutions_beat_perceptrons",
        "On images a convolutional net beats a perceptron.",
        source="LeCun et al., Gradient-Based Learning Applied to Document Recognition (1998)",
        predicts=HELPS,
        seeds=3,
        settings=(
            Setting("MNIST, 10,000 images", ADAM.but(model="convnet", width=8, depth=3), ADAM),
            Setting(
                "MNIST, 1,000 images",
                FEW.but(model="convnet", width=8, depth=3),
                FEW,
            ),
        ),
        note="Two strided convolutions of 8 and 16 channels, as many steps and images.",
    ),
)
