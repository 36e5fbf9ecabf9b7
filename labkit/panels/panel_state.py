"""The state of a panel: a failure mode, a preset, a data set and the changed knobs; also as a short string."""

import dataclasses
from dataclasses import dataclass, field

from labkit.errors import RecipeError, near
from labkit.failures.catalogue import FAILURES
from labkit.failures.mode import FailureMode
from labkit.training.language import LanguageRecipe
from labkit.training.recipe import Recipe

PLAIN = "recipe"  # takes the place of the mode's name where there is no mode


@dataclass(frozen=True)
class PanelState:
    """One setting of a panel. `str(setting)` is short, and `PanelState.read` reads it back.

    Presets are `healthy`, `sick`, `cure`, further cures as `cure2` ..., and false cures as `aid`, `aid2` ...
    """

    mode: FailureMode | None = None
    preset: str = "sick"
    dataset: str = "mnist"
    changes: dict = field(default_factory=dict)
    plain: Recipe = field(default_factory=Recipe)  # the recipe to start from where there is no mode

    @classmethod
    def read(cls, thing: "str | Recipe | FailureMode | PanelState") -> "PanelState":
        """From a mode or its name, a recipe, or the string of another setting."""
        if isinstance(thing, PanelState):
            return thing
        if isinstance(thing, FailureMode):
            return cls(mode=thing)
        if isinstance(thing, Recipe):
            return cls(preset=PLAIN, plain=thing, dataset=thing.summary()["data"])
        if not isinstance(thing, str):
            raise RecipeError(
                f"expected the name of a failure mode, a Recipe or a copied state, got {type(thing).__name__}"
            )
        head, _, changes = thing.partition(":")
        head, _, dataset = head.strip().partition("@")
        name, _, preset = head.partition("/")
        mode = None if name == PLAIN else FAILURES[name]
        dataset = dataset or "mnist"
        made = cls(mode, preset or "sick", dataset) if mode else cls(None, PLAIN, dataset, plain=baseline(dataset))
        turned = {}
        for text in filter(None, (each.strip() for each in changes.split(","))):
            turned |= made.plain.parse(text) if mode is None else mode.sick.parse(text)
        made.base.but(**turned)  # raises now if a change is refused
        return dataclasses.replace(made, changes=turned)

    def __str__(self) -> str:
        name = f"{self.mode.name}/{self.preset}" if self.mode else PLAIN
        place = f"@{self.dataset}" if self.dataset != "mnist" else ""
        plain = type(self.plain)(data=self.plain.data)
        turned = self.changes if self.mode else {key: new for key, (_, new) in self.recipe.changes_from(plain).items()}
        values = ", ".join(f"{key}={value}" for key, value in turned.items())
        return f"{name}{place}: {values}" if values else f"{name}{place}"

    @property
    def presets(self) -> dict[str, tuple[str, Recipe]]:
        """Preset -> its label and its recipe."""
        if self.mode is None:
            return {PLAIN: ("as given", self.plain)}
        setting = self.mode.setting(self.dataset)
        found = {"healthy": ("the healthy twin", self.mode.healthy), "sick": ("the sick net", self.mode.sick)}
        for kind, recipes in (("cure", self.mode.cures), ("aid", self.mode.false_cures)):
            for number, (words, recipe) in enumerate(recipes.items(), start=1):
                found[kind if number == 1 else f"{kind}{number}"] = words, recipe
        return {preset: (words, recipe.but(**setting)) for preset, (words, recipe) in found.items()}

    @property
    def base(self) -> Recipe:
        """The recipe of the preset, before any knob was turned."""
        if self.preset not in self.presets:
            raise RecipeError(f"there is no preset {self.preset!r} here. {near(self.preset, self.presets)}")
        return self.presets[self.preset][1]

    @property
    def recipe(self) -> Recipe:
        return self.base.but(**self.changes)

    @property
    def twin(self) -> Recipe:
        """The healthy run to compare with: the mode's own, else the lab's baseline; with the same seed."""
        healthy = self.presets["healthy"][1] if self.mode else type(self.plain)(data=self.plain.data)
        return healthy.but(seed=self.recipe.seed)

    def but(self, **changes) -> "PanelState":
        """The same with these changes as well; a knob back at the preset's value no longer counts as changed."""
        base = self.base.summary()
        turned = {name: value for name, value in (self.changes | changes).items() if base.get(name, self) != value}
        return dataclasses.replace(self, changes=turned)

    def code(self) -> str:
        """Python code for the same run."""
        return f"import labkit\n\n{self._recipe_code()}\nrun = labkit.train(recipe)\nlabkit.diagnose(run)"

    def _recipe_code(self) -> str:
        if self.mode is None:
            kind = type(self.recipe)
            changes = self.recipe.changes_from(kind())
            values = ", ".join(f"{name}={new!r}" for name, (_, new) in changes.items())
            return f"recipe = labkit.{kind.__name__}({values})"
        found = self.preset
        if found not in ("healthy", "sick"):
            kind = "cures" if found.startswith("cure") else "false_cures"
            found = f"{kind}[{self.presets[found][0]!r}]"
        there = f'.but(**mode.setting("{self.dataset}"))' if self.dataset != "mnist" else ""
        turned = ", ".join(f"{name}={value!r}" for name, value in self.changes.items())
        turned = f".but({turned})" if turned else ""
        return f'mode = labkit.FAILURES["{self.mode.name}"]\nrecipe = mode.{found}{there}{turned}'


def baseline(dataset: str) -> Recipe:
    """The lab's baseline on this data set: a perceptron for images, a GPT for tokens."""
    tokens = dataset in LanguageRecipe.__dataclass_fields__["data"].metadata["known"]
    return (LanguageRecipe if tokens else Recipe)(data=dataset)
