"""Predictions: the student chooses an option before the run, and learns afterwards whether it was right, and why."""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from labkit.course.grading import MARKS, NOT_ATTEMPTED, NOT_YET, RIGHT, framed_html, is_blank, short
from labkit.errors import RecipeError

STATES = {  # what a reply says: the mark and the colour of feedback
    "right": MARKS[RIGHT],
    "not as predicted": MARKS[NOT_YET],
    "recorded": MARKS[NOT_ATTEMPTED],
    "not chosen yet": MARKS[NOT_ATTEMPTED],
}
CHOSEN: dict[str, int] = {}  # id -> the option chosen in this session


@dataclass(frozen=True)
class Prediction:
    """One question of a lesson, whose options 1 to `choices` stand in the notebook; the answer stands only here."""

    id: str  # "05.0", or "05.0b" for a further one of the same lesson
    correct: int
    why: str
    choices: int = 3
    wrong: Mapping[int, str] = field(default_factory=dict)  # option -> why not, in addition to `why`

    def __post_init__(self):
        if not re.fullmatch(r"\d\d\.0[a-z]?", self.id):
            raise RecipeError(f"prediction {self.id!r}: expected an id such as '05.0', or '05.0b' for a second one")
        for option in (self.correct, *self.wrong):
            if option not in range(1, self.choices + 1):
                raise RecipeError(f"prediction {self.id}: expected options 1 to {self.choices}, got {option!r}")
        if self.choices < 2 or not self.why or self.correct in self.wrong:
            raise RecipeError(
                f"prediction {self.id}: expected two or more choices, a reason `why`, and in `wrong` no correct option"
            )

    def record(self, choice: object) -> "Reply":
        """Keep the first choice of the session."""
        if is_blank(choice):
            return self._reply("not chosen yet", f"Put the number of your option, 1 to {self.choices}, for the dots.")
        if isinstance(choice, bool) or not isinstance(choice, int) or not 1 <= choice <= self.choices:
            raise RecipeError(
                f"labkit.predict({self.id!r}, ...): expected the number of an option, 1 to {self.choices}, "
                f"got {short(choice)}"
            )
        first = CHOSEN.setdefault(self.id, choice)
        if first != choice:
            return self._reply("recorded", f"You chose {first} before. The first choice counts.")
        return self._reply("recorded", f"You chose {choice}. Now run the experiment.")

    def answer(self) -> "Reply":
        """Was the choice correct, and why? Without a choice it says nothing about the answer."""
        chosen = CHOSEN.get(self.id)
        if chosen is None:
            return self._reply(
                "not chosen yet",
                f"Choose first: labkit.predict({self.id!r}, 1), or another number up to {self.choices}. "
                "A guess is fine; being wrong first is how one learns.",
            )
        if chosen == self.correct:
            return self._reply("right", f"You chose {chosen}. {self.why}")
        why_not = f"{self.wrong[chosen]} " if chosen in self.wrong else ""
        return self._reply("not as predicted", f"You chose {chosen}. {why_not}The answer is {self.correct}. {self.why}")

    def _reply(self, state: str, words: str) -> "Reply":
        return Reply(self.id, state, words)


@dataclass(frozen=True)
class Reply:
    """What a prediction answers, readable as text or HTML; truthy when the prediction was right."""

    id: str
    state: str  # one of STATES
    words: str

    def __bool__(self) -> bool:
        return self.state == "right"

    def __str__(self) -> str:
        return f"{STATES[self.state][0]} {self.id} Prediction: {self.state}\n  {self.words}"

    __repr__ = __str__

    def __rich__(self):
        from rich.text import Text

        return Text(str(self))

    def _repr_html_(self) -> str:
        return framed_html(*STATES[self.state], self.state, f"{self.id} Prediction", html.escape(self.words))


def prediction(
    id: str, correct: int, why: str, *, choices: int = 3, wrong: Mapping[int, str] | None = None
) -> Prediction:
    """A question asked before a run: prediction("05.0", correct=3, why="...", wrong={1: "why not"})."""
    return Prediction(id, correct, why, choices, wrong or {})
