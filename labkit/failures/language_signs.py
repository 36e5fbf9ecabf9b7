"""Signs that several failures of language models share: which tokens do the logits depend on?"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from labkit.failures.mode import Evidence
from labkit.failures.signs import tested
from labkit.recording.run import Run
from labkit.training.language import LanguageRecipe

# A loss of a net that looks ahead is far too good, so these modes are measured by what the net writes.
WRITES = LanguageRecipe(measure="legible")
ON_TOKENS = "It is about MNIST as tokens; there are no photographs as tokens."

Leak = Literal[
    "causal_mask_missing", "mask_one_ahead", "mask_after_softmax", "softmax_over_queries",
    "heads_not_transposed_back", "heads_split_by_view",
]  # fmt: skip

# All of them at the first evaluation, mostly before the first step: a trained net with a leak uses the next token
# alone, and the patterns become alike. Measured on GPTs of 2 and 4 blocks, 2 and 4 heads, width 16 to 64, pre- and
# post-norm, 2 seeds, and on torch's encoder without a mask.
# Change of the logits at a position, relative to their deviation, that is rounding. Causal nets: exactly 0.
UNTOUCHED = 1e-5
# Later tokens cut off: causal nets 1e-6, in 16 bits up to 0.02; heads split by view 0.36 to 0.72.
CUT = 0.05
# Median change when later tokens are cut off over that when they are replaced. No mask: 0.26 to 1.6. Where a weight
# depends on how many tokens there are: 4.1 to 78.
LENGTH_MATTERS = 2.5
# Change at the first position over the median, times the number of positions. A sum over too many tokens makes the
# change grow with the position, from 1.8 to 7; where heads are mixed, the first sees later tokens last: 0 to 0.7.
FROM_THE_FIRST = 1.1
# Cut off: the change at the last three positions over that in the middle. Masked after the softmax 1.1 to 1.9, because
# all weights grow alike; a softmax over the queries 2.25 to 6.6: the last keys have the fewest queries.
LATE = 2.1


@dataclass(frozen=True)
class LooksAhead:
    """The change of the logits at each position before the tokens that were replaced, or cut off."""

    changed: np.ndarray
    cut: np.ndarray  # NaN for a net that takes sequences of one length only
    step: int

    @property
    def reached(self) -> float:
        """The share of positions that see one of the replaced tokens."""
        return float((self.changed > UNTOUCHED).mean())

    @property
    def length_matters(self) -> float:
        """How much more it changes to cut tokens off than to replace them."""
        return float(np.median(self.cut) / np.median(self.changed))

    @property
    def from_the_first(self) -> float:
        """The change at the first position over what growth in proportion to the position would give."""
        return float(self.changed[0] / np.median(self.changed) * len(self.changed))

    @property
    def late(self) -> float:
        """Cut off: the change at the last positions over that in the middle."""
        middle = len(self.cut) // 2
        return float(self.cut[-3:].mean() / self.cut[max(0, middle - 1) : middle + 2].mean())

    @property
    def kind(self) -> Leak | None:
        """Which fault has this pattern; None where the net is causal."""
        if not self.changed.max() > UNTOUCHED:
            return "heads_split_by_view" if self.cut.max() > CUT else None
        if not np.median(self.changed) > UNTOUCHED:
            return "mask_one_ahead"
        if not self.length_matters > LENGTH_MATTERS:
            return "causal_mask_missing"
        if self.from_the_first < FROM_THE_FIRST:
            return "heads_not_transposed_back"
        return "softmax_over_queries" if self.late > LATE else "mask_after_softmax"

    def __str__(self) -> str:
        return (
            f"replacing later tokens changes the logits at {self.reached:.0%} of the earlier positions, by up to "
            f"{self.changed.max():.2g} of their deviation, and cutting them off by up to {self.cut.max():.2g}"
        ).removesuffix(", and cutting them off by up to nan")


def looks_ahead(run: Run) -> LooksAhead:
    """How far the net depends on later tokens, at the first evaluation."""
    changed, cut = run["leak_changed_by_position"], run["leak_cut_by_position"]
    return LooksAhead(changed[0], cut[0], int(run["val_step"][0]))


def leak(run: Run, kind: Leak, pattern: str) -> Evidence | None:
    """The evidence for one kind of leak; `pattern` says what tells it from the others."""
    found = looks_ahead(run)
    if found.kind != kind or fills_gaps(run):
        return None
    sure = 0.95 if found.step == 0 else 0.75  # learning makes the patterns alike
    return Evidence(f"{found}: {pattern}", "0 at every position", found.step, "attention", confidence=sure)


# --- which token is it asked for? -----------------------------------------------------------------

# The loss of outputs that name the token asked for, over the smallest loss of outputs that name another one. A sure and
# right answer costs 0 to 0.2, a wrong one 10; of 73 % blank patches a wrong one is right by chance, which leaves 3.8.
# Smoothed labels (0.1) cost 1 and 9.
ASKED = 0.5
# The net's own loss against the token asked for, over the smallest of its three. Above this it has learned another
# token: the loss that is known is not the one that it was trained with. Sick nets on digits and text, from untrained to
# trained: 1.00 to 1.08. Healthy ones after 20 steps and later, against the same token 1.36 to 2.18, against the second
# next 1.29 to 1.68 (two seeds each).
LEARNED_ANOTHER = 1.18
SHIFTS = ("the token that it has just read", "the next token", "the token after the next")


def asks(run: Run) -> np.ndarray:
    """What perfect predictions of each of SHIFTS cost; NaN where the loss is not known."""
    tests = tested(run)
    return np.array([tests.get(f"asks_{shift}", np.nan) for shift in range(len(SHIFTS))])


def fills_gaps(run: Run) -> bool:
    """Is the net asked for none of the tokens that it reads? Masked language models, translators and taggers are not:
    they may look ahead."""
    costs = asks(run)
    return bool(np.isfinite(costs).all() and not costs.min() < ASKED * np.median(costs))


def asked_for(run: Run, shift: int) -> Evidence | None:
    """The evidence that the loss asks for another token than the next one: 0 is the one just read, 2 the second next.

    From the loss of perfect predictions of each; where the loss is not known, from what the net has learned to predict.
    """
    perfect, learned = asks(run), run["shift_loss"][-1]
    known = bool(np.isfinite(perfect).all())
    costs = perfect if known else learned
    if not np.isfinite(costs).all() or costs.argmin() != shift:
        return None
    if not costs[shift] < ASKED * np.delete(costs, shift).min() or looks_ahead(run).kind:
        return None
    if learned[shift] > LEARNED_ANOTHER * learned.min():
        return None
    found = f"perfect predictions of {SHIFTS[shift]} cost {costs[shift]:.2g}, of {SHIFTS[1]} {costs[1]:.2g}; "
    return Evidence(
        seen=f"{found if known else ''}the net's own loss against {SHIFTS[shift]} is {learned[shift]:.2g}, against "
        f"{SHIFTS[1]} {learned[1]:.2g}",
        usual=f"perfect predictions of {SHIFTS[1]} cost 0 to 0.2, of other tokens 3.8 and more",
        onset=int(run["val_step"][0]),
        place="targets",
        confidence=0.95 if known else 0.7,
    )


# --- reading with a cache, and writing ----------------------------------------------------------------------

# Largest difference of the logits with a cache and without: 1e-6 to 4e-6; wrong positions 8 to 11.
CACHE_DIFFERS = 0.5
# Difference of the logits from position to position when one token is repeated and read one by one, relative to their
# deviation: 0.28 to 0.38, and where the position does not advance 9e-8.
NO_PROGRESS = 1e-4
# Shares of tokens that stay the same at temperature 0 when samples are written in another way. Healthy 1.00; a stale
# cache 0.78 to 0.83, padding 0.60 to 0.74 (three seeds each).
AGREES = 0.92


def cached_positions(run: Run) -> Literal["stuck", "ahead"] | None:
    """What is wrong with the positions of tokens that are read with a cache; None where nothing is, or no net has any.

    In a net that looks ahead, reading token by token is another reading in any case.
    """
    differs, signal, ahead = (run[name][-1] for name in ("cache_difference", "cached_position_signal", "cached_ahead"))
    if not differs > CACHE_DIFFERS or not run["position_signal"][-1] > NO_PROGRESS or looks_ahead(run).kind:
        return None
    if signal < NO_PROGRESS:
        return "stuck"
    return "ahead" if ahead == 1 else None


def differs_with_cache(run: Run, seen: str, usual: str) -> Evidence:
    """The evidence for wrong positions in the cache: the same tokens, read in two ways."""
    return Evidence(
        seen=f"read token by token with the cache, the logits differ by up to {run['cache_difference'][-1]:.2g} from "
        f"those of the same tokens read at once, and {seen}",
        usual=f"a difference of 1e-6 to 1e-5, and {usual}",
        onset=int(run["val_step"][0]),
        place="cache",
        confidence=0.95,
    )
