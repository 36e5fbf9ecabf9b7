"""Claims about clipping, gradient norms, initialisation, depth and normalisation."""

from torch import nn

from labkit.diagnosis.evaluation.folklore import measures
from labkit.diagnosis.evaluation.folklore.claim import (
    HARMLESS,
    HELPS,
    HURTS,
    NO_DIFFERENCE,
    Claim,
    Setting,
    at_least,
    at_most,
)  # fmt: skip
from labkit.diagnosis.evaluation.folklore.claims.twins import ADAM, BASE, DEEP, NORMED
from labkit.failures.code.summed_loss import summed_cross_entropy
from labkit.training import models

BATCH_NORM = (
    "Ioffe and Szegedy, Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate Shift "
    "(2015)"
)
XAVIER = "Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks (2010)"
DEEP_TANH = DEEP.but(activation="tanh", init="xavier")
DEEP_SIGMOID = DEEP.but(activation="sigmoid", init="xavier")


def mlp_with_zero_biases(recipe, data) -> nn.Module:
    """The plain net, with its default weights and biases that begin at 0."""
    net = models.mlp(recipe, data)
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
    return net


def mlp_without_biases_before_norms(recipe, data) -> nn.Module:
    """The plain net, without the biases that the next normalisation subtracts again."""
    net = models.mlp(recipe, data)
    for number in range(1, recipe.depth):
        net.get_submodule(f"layer{number}").bias = None
    return net


claims = (
    Claim(
        "clipping_is_safe",
        "Clip the gradient norm to 1 always: it costs nothing.",
        predicts=HARMLESS,
        settings=(
            Setting("SGD", BASE.but(clip=1.0), BASE),
            Setting(
                "SGD with momentum 0.9", BASE.but(clip=1.0, lr=0.03, momentum=0.9), BASE.but(lr=0.03, momentum=0.9)
            ),
            Setting("Adam", ADAM.but(clip=1.0), ADAM),
            Setting("10 layers, SGD", DEEP.but(clip=1.0), DEEP),
        ),
    ),
    Claim(
        "clipping_every_step_is_bad",
        "When nearly every step is clipped, the threshold is too tight and training suffers.",
        predicts=HURTS,
        settings=(
            Setting("SGD, threshold 0.1", BASE.but(clip=0.1), BASE),
            Setting("Adam, threshold 0.01", ADAM.but(clip=0.01), ADAM),
        ),
        note="In each treated run more than 95 % of the steps are clipped.",
    ),
    Claim(
        "large_gradients_mean_divergence",
        "A gradient norm above 10 means that training is about to diverge.",
        predicts=HURTS,
        settings=(
            Setting("Adam, loss summed over the batch", ADAM.but(loss=summed_cross_entropy), ADAM),
            Setting("SGD, loss summed over the batch", BASE.but(loss=summed_cross_entropy), BASE),
        ),
        note="A sum over 128 images: the first gradient norm is above 200.",
    ),
    Claim(
        "first_loss_must_be_ln_k",
        "The first loss must be ln K; a net that starts elsewhere learns less.",
        source="Karpathy, A Recipe for Training Neural Networks (2019)",
        predicts=HURTS,
        settings=(
            Setting("He init, first loss 2.9 to 3.4", BASE.but(init="he"), BASE),
            Setting("normal init of 1, first loss in the hundreds", BASE.but(init="normal"), BASE),
        ),
        note="ln 10 = 2.30; the control starts at 2.29 to 2.36.",
    ),
    Claim(
        "he_for_relu",
        "He init for ReLU: better than Xavier.",
        source="He et al., Delving Deep into Rectifiers (2015)",
        predicts=HELPS,
        settings=(
            Setting("2 layers", BASE.but(init="he"), BASE.but(init="xavier")),
            Setting("10 layers", DEEP, DEEP.but(init="xavier")),
        ),
    ),
    Claim(
        "xavier_for_tanh",
        "Xavier init for tanh: better than He.",
        source=XAVIER,
        predicts=HELPS,
        settings=(
            Setting("2 layers", BASE.but(activation="tanh", init="xavier"), BASE.but(activation="tanh", init="he")),
            Setting("10 layers", DEEP_TANH, DEEP_TANH.but(init="he")),
        ),
    ),
    Claim(
        "zero_biases_are_fine",
        "Biases may start at 0.",
        source="Goodfellow, Bengio, Courville, Deep Learning (2016), section 8.4",
        predicts=NO_DIFFERENCE,
        settings=(
            Setting("2 layers", BASE.but(model=mlp_with_zero_biases), BASE),
            Setting("3 layers, Adam", ADAM.but(depth=3, model=mlp_with_zero_biases), ADAM.but(depth=3)),
        ),
    ),
    Claim(
        "relu_cures_vanishing_gradients",
        "ReLU has no vanishing gradients: a net of ten layers trains as well as one of two.",
        source="Glorot, Bordes and Bengio, Deep Sparse Rectifier Neural Networks (2011), as it is usually read",
        predicts=at_least(-2),
        settings=(
            Setting("PyTorch's default init", DEEP.but(init="default"), DEEP.but(depth=2)),
            Setting("He init", DEEP, DEEP.but(depth=2)),
        ),
    ),
    Claim(
        "sigmoid_derivative_of_a_quarter",
        "Through each sigmoid layer a gradient shrinks fourfold.",
        measure=measures.FIRST_LAYER_GRADIENT,
        seeds=3,
        predicts=at_least(-5.5),
        settings=(
            Setting("10 layers, PyTorch's default init", DEEP_SIGMOID.but(init="default")),
            Setting("10 layers, Xavier init", DEEP_SIGMOID),
        ),
        note="Nine layers with a factor of 1/4 each are 5.4 powers of ten; -5.5 allows no more.",
    ),
    Claim(
        "xavier_saves_deep_sigmoid_nets",
        "Xavier init makes deep sigmoid nets trainable.",
        source=f"{XAVIER}, as it is usually read",
        seeds=3,
        predicts=at_least(20),
        settings=(
            Setting(
                "10 layers, against the default init",
                DEEP_SIGMOID,
                DEEP_SIGMOID.but(init="default"),
            ),
        ),
    ),
    Claim(
        "residuals_make_depth_trainable",
        "Skip connections make a deep net trainable.",
        source="He et al., Deep Residual Learning for Image Recognition (2016)",
        seeds=3,
        predicts=at_least(10),
        settings=(
            Setting("10 layers, default init", DEEP.but(init="default", residual=True), DEEP.but(init="default")),
            Setting("10 layers, He init", DEEP.but(residual=True), DEEP),
        ),
    ),
    Claim(
        "deeper_is_better",
        "A deeper net learns more.",
        predicts=HELPS,
        settings=(
            Setting("4 layers against 2, Adam", ADAM.but(depth=4), ADAM),
            Setting(
                "10 layers against 2, He init, Adam at 0.001",
                DEEP.but(optimizer="adam", lr=0.001),
                DEEP.but(optimizer="adam", lr=0.001, depth=2),
            ),
        ),
    ),
    Claim(
        "gelu_beats_relu",
        "GELU beats ReLU.",
        source="Hendrycks and Gimpel, Gaussian Error Linear Units (2016)",
        predicts=HELPS,
        settings=(
            Setting("2 layers, SGD", BASE.but(activation="gelu"), BASE),
            Setting("4 layers, Adam", ADAM.but(depth=4, activation="gelu"), ADAM.but(depth=4)),
        ),
    ),
    Claim(
        "relu_beats_tanh",
        "ReLU learns faster than tanh.",
        source="Krizhevsky, Sutskever and Hinton, ImageNet Classification with Deep Convolutional Neural "
        "Networks (2012)",
        predicts=HELPS,
        settings=(
            Setting("2 layers, SGD", BASE, BASE.but(activation="tanh")),
            Setting("10 layers, each with its own init", DEEP, DEEP_TANH),
        ),
    ),
    Claim(
        "leaky_relu_cures_dead_units",
        "Leaky ReLU trains at learning rates that kill ReLUs.",
        source="Maas, Hannun and Ng, Rectifier Nonlinearities Improve Neural Network Acoustic Models (2013), "
        "as it is usually read",
        predicts=at_least(-2),
        settings=(
            Setting("Adam at 0.1, 3 layers", ADAM.but(depth=3, lr=0.1, activation="leaky_relu"), ADAM.but(depth=3)),
            Setting("SGD at 1, 2 layers", BASE.but(lr=1.0, activation="leaky_relu"), BASE),
        ),
        note="Against ReLU at a learning rate at which none die.",
    ),
    Claim(
        "batch_norm_allows_higher_rates",
        "Batch norm allows a learning rate ten times higher.",
        source=BATCH_NORM,
        predicts=HARMLESS,
        settings=(
            Setting("SGD at 1 instead of 0.1", NORMED.but(lr=1.0), NORMED),
            Setting(
                "Adam at 0.03 instead of 0.003",
                NORMED.but(optimizer="adam", lr=0.03),
                NORMED.but(optimizer="adam", lr=0.003),
            ),
        ),
    ),
    Claim(
        "batch_norm_forgives_the_init",
        "With batch norm the init hardly matters.",
        source=BATCH_NORM,
        predicts=at_least(-2),
        settings=(
            Setting("normal init of 0.2 instead of the default", NORMED.but(init="normal", init_scale=0.2), NORMED),
            Setting("normal init of 1 instead of the default", NORMED.but(init="normal"), NORMED),
        ),
    ),
    Claim(
        "batch_norm_helps",
        "Batch norm helps, whatever the net.",
        predicts=HELPS,
        settings=(
            Setting("3 layers, SGD at 0.1", NORMED, NORMED.but(normalisation="none")),
            Setting("3 layers, Adam at 0.003", NORMED.but(optimizer="adam", lr=0.003), ADAM.but(depth=3)),
        ),
    ),
    Claim(
        "layer_norm_replaces_batch_norm",
        "Layer norm is as good as batch norm.",
        source="Ba, Kiros and Hinton, Layer Normalization (2016), as it is usually read",
        predicts=HARMLESS,
        settings=(Setting("3 layers, batches of 128", NORMED.but(normalisation="layer"), NORMED),),
    ),
    Claim(
        "no_bias_before_batch_norm",
        "A bias before batch norm does nothing.",
        source=BATCH_NORM,
        predicts=NO_DIFFERENCE,
        settings=(Setting("3 layers", NORMED.but(model=mlp_without_biases_before_norms), NORMED),),
    ),
    Claim(
        "dropout_before_batch_norm_hurts",
        "Dropout before batch norm hurts.",
        source="Li et al., Understanding the Disharmony between Dropout and Batch Normalization by Variance "
        "Shift (2019)",
        predicts=HURTS,
        settings=(
            Setting("dropout 0.2", NORMED.but(dropout=0.2), NORMED),
            Setting("dropout 0.5", NORMED.but(dropout=0.5), NORMED),
            Setting(
                "dropout 0.5, without the batch norm",
                NORMED.but(dropout=0.5, normalisation="none"),
                NORMED.but(normalisation="none"),
            ),
        ),
        note="The last setting shows what dropout does by itself.",
    ),
    Claim(
        "first_loss_tells_the_init",
        "Any usual init starts at ln K.",
        source="Karpathy, A Recipe for Training Neural Networks (2019), as it is usually read",
        measure=measures.FIRST_LOSS,
        predicts=at_most(2.45),
        settings=(
            Setting("PyTorch's default init", BASE),
            Setting("He init", BASE.but(init="he")),
            Setting("Xavier init", BASE.but(init="xavier")),
        ),
        note="ln 10 = 2.30.",
    ),
)
