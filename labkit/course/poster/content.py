"""What hangs above the desk: the healthy ranges, the ten-point list before a run, and the way from symptom to cause."""

import math
from dataclasses import dataclass

FLOAT16_LARGEST = 65_504  # beyond it float16 is infinite; bfloat16 and float32 reach 3e38


@dataclass(frozen=True)
class Range:
    """Where an instrument stays in healthy runs, and what leaving it means."""

    name: str
    trace: str
    low: float
    high: float
    healthy: str
    warning: str


# Measured on healthy runs of the lab's nets: perceptrons of 2 to 10 layers, SGD and Adam, 150 to 400 steps of batch
# 128, MNIST, several seeds. The usual rules of thumb are often narrower than healthy runs are.
RANGES = (
    Range("loss", "loss", 0.0, 2 * math.log(10), "starts near ln(classes), falls", "rises threefold, or never moves"),
    Range(
        "gradient norm", "grad_norm_total", 0.05, 30, "0.4 to 16, rises before it falls", "below 0.001 or above 1000"
    ),
    Range("first / last layer", "grad_ratio", 0.1, 20, "gradients in a ratio of 0.5 to 10", "below 0.001"),
    Range("update / weight", "update_ratio", 1e-3, 0.2, "0.001 to 0.2 at each step", "below 0.0001 or above 0.5"),
    Range("weight norm", "weight_norm", 1.0, 40, "doubles in 400 steps", "collapses, or grows tenfold"),
    Range("dead units", "dead", 0.0, 0.4, "under 20 % of a layer", "over 50 %"),
    Range("validation gap", "gap", -0.1, 0.5, "under 0.3", "over 0.6 and growing"),
    Range("batch-loss variance", "loss_variance", 0.0, 0.1, "per sample / batch size", "many times that"),
    Range("learning rate", "lr", 0.0, 1.0, "as the schedule says", "0, or rising late"),
)
BANDS = {each.trace: (each.low, each.high) for each in RANGES}

PREFLIGHT = (
    "The first loss is near ln(classes).",
    "One batch of 32 can be learned by heart.",
    "Inputs are finite, with mean 0 and spread 1.",
    "The outputs have one column per class.",
    "A gradient reaches every parameter.",
    "One step lowers the loss of its own batch.",
    "No image is in training and in validation.",
    "Validation images are not augmented.",
    "train() to train; eval() and no_grad() to validate.",
    "The checkpoint has optimizer and schedule; LR is logged.",
)

# Symptom -> what to look at -> (reading, cause); a cause is the name of a failure mode.
TREE = {
    "The loss is NaN or infinite": {
        "Where was the first one?": (
            ("in a 16-bit activation", "fp16_overflow"),
            ("after updates larger than the weights", "learning_rate_too_high"),
        ),
    },
    "The loss jumps, then sits at chance": {
        "How large was the first update?": (("over half of the weights", "learning_rate_too_high"),),
    },
    "The loss never moves": {
        "Updates beside weights?": (("below 0.0001, gradients alive", "learning_rate_too_low"),),
        "Gradients per layer?": (("first layer below 0.001 of the last", "vanishing_gradients"),),
        "Silent units?": (("over half of a layer", "dead_relu"),),
    },
    "Training falls, validation rises": {
        "Training accuracy?": (("100 %: learned by heart", "too_few_samples"),),
    },
}
