"""Every fact of a run that labkit reads, in one table: what kind of value it has. Other facts may be anything."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

from labkit.recording.measure import MEASURES

LARGEST_PICTURE = 10_000  # characters: 99 x 99 pixels
MOST_CLASSES = 10**7  # a vocabulary has 10**5 to 10**6 words; an array of that many shares still fits in memory

TASKS = ("classes", "tokens", "pixels", "yes or no", "labels", "numbers", "unknown")  # what a net predicts: task.py


@dataclass(frozen=True)
class Kind:
    """A kind of value: in words, and as a test."""

    words: str
    fits: Callable[[object], bool]


def whole(low: int = 0, high: int = 2**63 - 1) -> Kind:
    words = f"a whole number at least {low}" + (f" and at most {high}" if high < 2**63 - 1 else "")
    return Kind(words, lambda value: type(value) is int and low <= value <= high)


def _is_number(value: object) -> bool:
    if type(value) is int:
        return abs(value) <= sys.float_info.max
    return type(value) is float  # NaN and infinity are measurements too


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and _is_number(value) and 0 < value < math.inf


def is_text(value: object) -> bool:
    """A string that can be printed and written to a file: no half of a surrogate pair."""
    return isinstance(value, str) and value.encode("utf-8", "replace").decode() == value


def _is_picture(value: object) -> bool:
    if not isinstance(value, str) or len(value) > LARGEST_PICTURE or not set(value) <= set("#.\n"):
        return False
    return len({len(line) for line in value.split("\n")}) == 1


NUMBER = Kind("a number", _is_number)
POSITIVE = Kind("a finite number above 0", _is_positive)
TEXT = Kind("a text", is_text)
WHOLE, COUNT = whole(), whole(1)
PICTURE = Kind("lines of # and . of the same length", _is_picture)


def maybe(kind: Kind) -> Kind:
    return Kind(f"{kind.words} or null", lambda value: value is None or kind.fits(value))


def one_of(*names: str) -> Kind:
    return Kind("one of " + ", ".join(names), lambda value: isinstance(value, str) and value in names)


def many(kind: Kind, length: int | None = None) -> Kind:
    def fits(value: object) -> bool:
        return isinstance(value, list) and (length is None or len(value) == length) and all(map(kind.fits, value))

    return Kind(f"a list of {'' if length is None else f'{length} '}values, each {kind.words}", fits)


def by_name(kind: Kind) -> Kind:
    """A dictionary with any keys."""
    words = f"a dictionary whose values are {kind.words}"
    return Kind(
        words,
        lambda value: isinstance(value, dict) and all(is_text(key) and kind.fits(each) for key, each in value.items()),
    )


def record(required: dict[str, Kind], optional: dict[str, Kind] | None = None) -> Kind:
    """A dictionary that has these keys, and perhaps those, and perhaps others."""
    known = required | (optional or {})

    def fits(value: object) -> bool:
        if not isinstance(value, dict) or not required.keys() <= value.keys():
            return False
        return all(name not in value or kind.fits(value[name]) for name, kind in known.items())

    return Kind("a dictionary with " + ", ".join(f"{name} ({kind.words})" for name, kind in known.items()), fits)


BRACKET = many(maybe(NUMBER), 3)  # largest finite, smallest not, largest not: nan_hunt._finite_up_to
ORIGIN = record(  # where the first non-finite value came from: nan_hunt.hunt
    {"step": WHOLE, "stage": TEXT},
    {
        "place": TEXT, "count": WHOLE, "nan": WHOLE, "dtype": TEXT, "samples": many(WHOLE), "share": NUMBER,
        "float32": maybe(NUMBER), "float32_sizes": by_name(NUMBER), "spread": NUMBER, "largest": BRACKET,
        "behind": BRACKET, "nan_losses": WHOLE, "weight": NUMBER,
    },
)  # fmt: skip
EVENT = record({"kind": TEXT, "step": WHOLE})
NAMES = many(TEXT)
PAIRS = many(many(WHOLE, 2))  # of numbers

FACTS: dict[str, Kind] = {
    # --- of the run: training/loop.py, diagnosis/watch.py ---
    "classes": whole(1, MOST_CLASSES),
    "samples": COUNT,
    "batch_size": COUNT,
    "clip": maybe(POSITIVE),
    "clip_by": one_of("norm", "value"),
    "planned_steps": COUNT,
    "stopped": maybe(TEXT),
    "error": maybe(record({"kind": TEXT, "message": TEXT, "step": WHOLE})),
    "device": TEXT,
    "torch": TEXT,
    "weights_sha256": TEXT,
    "measure": one_of(*MEASURES),
    "written": many(many(WHOLE)),  # samples of a language model, one list of tokens each
    "pictures": many(PICTURE),  # the same as black (#) and white (.) pixels
    "written_shares": many(NUMBER),  # how often each token occurs in them
    "token_shares": many(NUMBER),  # and in the validation data
    "val_relabelled": record({}, {"trained": NUMBER, "as_is": NUMBER, "swapped": NUMBER, "swaps": PAIRS}),
    "rereading_agrees": NUMBER,  # share of tokens that are the same when samples are written without a cache
    "alone_agrees": NUMBER,  # share of tokens that are the same when no other samples are written before
    "prompt_length": COUNT,  # tokens that samples begin with
    "length_read_first": COUNT,  # and that the net read when it began to write
    "end_token": WHOLE,  # at which a sample stops
    "top_eigenvalue": NUMBER,
    "perturbed_rise": NUMBER,
    "seconds": NUMBER,
    "every": COUNT,
    "source": TEXT,
    "note": TEXT,
    "processes": COUNT,
    "rank_overlap": NUMBER,
    # --- of the instruments: recorder.py, sample_log.py ---
    "first_nonfinite": maybe(ORIGIN),
    "constant_loss": NUMBER,  # of the best prediction that is the same for every sample of the probe
    "task": one_of(*TASKS),  # what the net is asked to predict
    "probe_tests": by_name(NUMBER),  # probe_tests.py
    "matrices": NAMES,
    "without_gradient": NAMES,
    "never_trained": NAMES,  # of these, the weight matrices that look as after an init
    "first_weights": by_name(by_name(NUMBER)),  # of every layer with a weight matrix: units, inputs, gain, alike
    "thinned": record({"stride": COUNT, "until": WHOLE}),
    "switched_off": many(record({"instrument": TEXT, "step": WHOLE, "error": TEXT})),
    "measured_in_full": record({"first": WHOLE, "every": COUNT, "also": many(WHOLE)}),
    "dtypes": record({}, {"weights": NAMES, "inputs": NAMES, "outputs": NAMES, "state": NAMES}),
    "batch_norms": NAMES,
    "batch_norms_unmoved": NAMES,
    "dropouts": NAMES,
    "dropout_rates": many(NUMBER),  # of each of them
    "momentum": NUMBER,  # the highest of the optimizers, or the first beta
    "not_in_optimizer": NAMES,
    "unregistered": many(many(WHOLE)),
    "batch_length": WHOLE,
    "different_samples": WHOLE,  # of the first million that were trained on
    "order_repeats": NUMBER,
    "fresh_steps": WHOLE,  # before samples came again
    "val_columns_apart": NUMBER,  # share of the columns of inputs that differ between training and validation
    "best_column": NUMBER,  # the share of an input's variance that the target explains, where it is highest
    "val_trained_on": NUMBER,
    "val_trained_on_by_chance": NUMBER,
    "val_changed": NUMBER,
    "label_shares": many(NUMBER),
    "relabelled": NUMBER,
}
