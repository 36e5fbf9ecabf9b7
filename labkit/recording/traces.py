"""Every trace that a run can have, in one table: rows, columns, label, unit and healthy range."""

import math
from dataclasses import dataclass

FLOAT16_LARGEST = 65_504  # beyond it float16 is infinite; bfloat16 and float32 reach 3e38

AXES = ("layers", "parameters", "activations", "heads")  # what the columns of a trace stand for: names that a run has
STEP, EVALUATION = "step", "val_step"  # the two traces that say when a row was recorded
STEPS = frozenset({STEP, EVALUATION})
SHARE, NATS = "share", "nats"  # a share is a number from 0 to 1
PREFIXES = ("val_", "probe_")  # of an unknown trace with one row per evaluation; `Recorder.validate` adds val_ itself


@dataclass(frozen=True)
class Trace:
    """One trace of a run: what its rows and columns stand for, how to label it, and where it stays in healthy runs."""

    name: str
    words: str  # its label
    axis: str | None = None  # what its columns stand for; None: one number per row
    rows: str = STEP  # one per training step, or one per EVALUATION
    unit: str = ""
    low: float = -math.inf  # of all healthy runs
    high: float = math.inf
    healthy: str = ""  # where most healthy values lie
    warning: str = ""  # the sign that something is wrong
    inner: int | None = None  # length of a third axis, 0 for any; None where there is none

    @property
    def usual(self) -> str:
        """Its healthy range: '0.05 to 30'; of a share, 'up to 40 %'."""
        return f"up to {100 * self.high:g} %" if self.unit == SHARE else f"{self.low:g} to {self.high:g}"


# The ranges were measured on healthy runs of the lab's nets: perceptrons of 2 to 10 layers, SGD and Adam, 150 to 400
# steps of batch 128, MNIST, several seeds. The usual rules of thumb are often narrower than healthy runs are.
# `grad_ratio` (summaries.gradient_ratio), `gap` (Run.gap), `loss_variance` (Run.batch_loss_variance) and, unless the
# threshold changed during the run, `clipped` (Run.clipped) are computed from recorded traces.
_KNOWN = (
    # --- with a healthy range ---
    Trace("loss", "loss", low=0.0, high=2 * math.log(10), healthy="starts near ln(classes), falls",
          warning="rises threefold, or never moves"),
    Trace("grad_norm_total", "gradient norm", low=0.05, high=30, healthy="0.2 to 16, may rise before it falls",
          warning="below 0.001 or above 1000"),
    Trace("grad_ratio", "first / last layer", low=0.1, high=20, healthy="gradients in a ratio of 0.5 to 10",
          warning="below 0.001"),
    Trace("update_ratio", "update / weight", "layers", low=1e-3, high=0.2, healthy="0.001 to 0.2, less after decay",
          warning="below 0.0001 or above 0.5"),
    Trace("weight_norm", "weight norm", "layers", low=1.0, high=40, healthy="grows up to threefold in 400 steps",
          warning="collapses, or grows tenfold"),
    Trace("dead", "dead units", "activations", EVALUATION, SHARE, low=0.0, high=0.4, healthy="under 20 % of a layer",
          warning="over 50 %"),
    Trace("gap", "validation gap", None, EVALUATION, NATS, low=-0.1, high=0.5, healthy="under 0.3",
          warning="over 0.6 and growing"),
    Trace("loss_variance", "batch-loss variance", low=0.0, high=0.1, healthy="per sample / batch size",
          warning="many times that"),
    Trace("lr", "learning rate", low=0.0, high=1.0, healthy="as the schedule says", warning="0, or rising late"),
    # --- per step ---
    Trace("step", "step"),
    Trace("loss_scale", "loss scale"),
    Trace("clipped", "clipped (1) or not (0)"),
    Trace("grad_norm", "gradient norm per layer", "layers"),
    Trace("update_norm", "update norm", "layers"),
    Trace("grad_mean", "mean gradient", "parameters"),
    Trace("grad_std", "standard deviation of the gradient", "parameters"),
    Trace("grad_min", "smallest gradient entry", "parameters"),
    Trace("grad_max", "largest gradient entry", "parameters"),
    Trace("grad_near_zero", "gradients near zero", "parameters", unit=SHARE),
    Trace("activation_mean", "mean activation", "activations"),
    Trace("activation_std", "standard deviation of activations", "activations"),
    Trace("activation_saturated", "saturated units", "activations", unit=SHARE),
    Trace("train_mode", "in train mode (1) or not (0)"),
    Trace("input_max", "largest input"),
    Trace("input_outliers", "samples that are outliers", unit=SHARE),
    Trace("label_entropy", "entropy of a batch's labels", unit=NATS),
    # --- per evaluation ---
    Trace("val_step", "updates before the evaluation", rows=EVALUATION),
    Trace("val_loss", "validation loss", rows=EVALUATION),
    Trace("val_accuracy", "validation accuracy", rows=EVALUATION, unit=SHARE),
    Trace("val_nats", "validation loss per token", rows=EVALUATION, unit=NATS),
    Trace("val_legible", "legible samples", rows=EVALUATION, unit=SHARE),
    Trace("val_confidence", "confidence", rows=EVALUATION, unit=SHARE),
    Trace("val_train_mode", "validated in train mode", rows=EVALUATION, unit=SHARE),
    Trace("val_with_gradients", "validated with gradients", rows=EVALUATION, unit=SHARE),
    Trace("val_input_mean", "mean of validation inputs", rows=EVALUATION),
    Trace("val_input_std", "standard deviation of validation inputs", rows=EVALUATION),
    Trace("probe_loss", "loss on training images", rows=EVALUATION),
    Trace("probe_accuracy", "accuracy on training images", rows=EVALUATION, unit=SHARE),
    Trace("sample_loss_mean", "mean loss of single samples", rows=EVALUATION),
    Trace("sample_loss_variance", "variance of the loss of single samples", rows=EVALUATION),
    Trace("nonlinearity", "distance from an affine function", rows=EVALUATION),
    Trace("twins", "identical units", "activations", EVALUATION, SHARE),
    Trace("histogram", "histogram of activations", "activations", EVALUATION, inner=0),  # bins
    Trace("histogram_range", "range of activations", "activations", EVALUATION, inner=2),  # low, high
    Trace("batch_softmax_distance", "distance from a softmax over the batch", rows=EVALUATION),
    Trace("leak_changed", "dependence on later tokens, changed", rows=EVALUATION),
    Trace("leak_cut", "dependence on later tokens, cut off", rows=EVALUATION),
    Trace("leak_changed_by_position", "dependence on later tokens, changed, by position", rows=EVALUATION, inner=0),
    Trace("leak_cut_by_position", "dependence on later tokens, cut off, by position", rows=EVALUATION, inner=0),
    Trace("own_token", "dependence on the own token, changed", rows=EVALUATION),
    Trace("position_signal", "difference between positions of the same token", rows=EVALUATION),
    Trace("shift_loss", "loss against the same, the next and the second next token", rows=EVALUATION, unit=NATS,
          inner=3),
    Trace("position_loss", "loss by position", rows=EVALUATION, unit=NATS, inner=0),
    Trace("word_loss", "loss by token", rows=EVALUATION, unit=NATS, inner=0),
    Trace("log_z", "log Z of the logits", rows=EVALUATION),
    Trace("cache_difference", "cached against uncached logits", rows=EVALUATION),
    Trace("cached_position_signal", "difference between positions of the same token, cached", rows=EVALUATION),
    Trace("cached_ahead", "positions that cached tokens are ahead by", rows=EVALUATION),
    Trace("val_surprise", "loss of the net's own samples", rows=EVALUATION, unit=NATS),
    Trace("val_stopped", "samples that stop", rows=EVALUATION, unit=SHARE),
    Trace("attention_logit", "largest attention logit", "heads", EVALUATION),
    Trace("attention_entropy", "attention entropy", "heads", EVALUATION, NATS),
)  # fmt: skip
TRACES = {each.name: each for each in _KNOWN}


def trace(name: str, rows: int = 0, *, steps: int = 0, evaluations: int = 0) -> Trace:
    """The entry of the table; for a trace that is not in it, what its name and its number of rows tell."""
    if name in TRACES:
        return TRACES[name]
    by_evaluation = name.startswith(PREFIXES) or rows == evaluations != steps
    return Trace(name, name.replace("_", " "), rows=EVALUATION if by_evaluation else STEP)


RANGES = tuple(each for each in _KNOWN if each.high < math.inf)
