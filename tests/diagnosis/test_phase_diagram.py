"""The phase diagram: real runs over a grid, what became of each, kept on disk, stopped and taken up again."""

import numpy as np
import pytest
from helpers import hand_made, tiny

from labkit.diagnosis.phase_diagram import OUTCOMES, Cell, Phase, outcome, phase
from labkit.diagnosis.phase_plots import MARKS, phase_diagram
from labkit.errors import RecipeError
from labkit.training import run_store
from labkit.training.run_store import Memory, RunStore

AXES = {"lr": (1e-6, 0.1, 1e4), "depth": (2, 3)}
BASE = tiny(steps=8)


@pytest.fixture
def store(tmp_path) -> RunStore:
    return RunStore(tmp_path)


@pytest.fixture
def trainings(monkeypatch) -> list:
    """The recipes that were really trained."""
    done, train = [], run_store.train

    def counting(recipe, **options):
        done.append(recipe)
        return train(recipe, **options)

    monkeypatch.setattr(run_store, "train", counting)
    return done


def test_every_cell_is_the_real_run_of_its_recipe(store, trainings):
    found = Phase(BASE, AXES)
    assert list(found.explore(store=store)) == list(found.recipes) == list(found.cells)
    assert len(trainings) == 6
    for (lr, depth), cell in found.cells.items():
        assert (cell.run.recipe["lr"], cell.run.recipe["depth"]) == (lr, depth)
        assert cell.recipe == BASE.but(lr=lr, depth=depth) and cell.outcome in OUTCOMES
    assert found[1e4, 2].outcome == "diverged"
    assert sum(found.counts.values()) == 6 and "6 of 6 runs" in repr(found) and "<img" in found._repr_html_()


def test_what_was_finished_is_not_trained_again(store, trainings):
    first, second = Phase(BASE, AXES), Phase(BASE, AXES)
    list(first.explore(store=store))
    store.forget()
    list(second.explore(store=store))
    assert len(trainings) == 6
    assert [cell.outcome for cell in first.cells.values()] == [cell.outcome for cell in second.cells.values()]
    for place, cell in first.cells.items():
        assert second[place].run.facts["weights_sha256"] == cell.run.facts["weights_sha256"]
    store.path(BASE.but(lr=0.1, depth=3)).write_bytes(b"damaged")
    store.forget()
    list(Phase(BASE, AXES).explore(store=store))
    assert trainings[6:] == [BASE.but(lr=0.1, depth=3)]


def test_it_stops_within_a_step_and_goes_on_where_it_was(store, trainings):
    asked = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 12  # in the middle of the second run

    found = Phase(BASE, AXES)
    assert len(list(found.explore(store=store, stop=stop))) == 1
    assert len(asked) == 13 and len(list(store.folder.glob("*.npz"))) == 1
    rest = list(found.explore(store=store))
    assert len(rest) == 5 and len(found.cells) == 6
    assert all(len(cell.run) == 8 or cell.run.facts["stopped"] == "non-finite" for cell in found.cells.values())


def test_several_processes_find_the_same(store, tmp_path):
    axes = {"lr": (0.01, 0.1), "depth": (2,)}
    alone, together = Phase(BASE, axes), Phase(BASE, axes)
    list(alone.explore(store=store))
    list(together.explore(store=RunStore(tmp_path / "other", memory=Memory()), jobs=2))
    for place in alone.cells:
        assert together[place].run.facts["weights_sha256"] == alone[place].run.facts["weights_sha256"]


def test_the_function_gives_the_whole_grid(tmp_path):
    found = phase(BASE, lr=(0.1, 0.2), activation=("relu", "tanh"), folder=tmp_path, progress=False)
    assert set(found.cells) == {(0.1, "relu"), (0.1, "tanh"), (0.2, "relu"), (0.2, "tanh")}


CHANCE = np.log(10)


@pytest.mark.parametrize(
    ("expected", "run"),
    [
        ("learned", hand_made(60, val_accuracy=0.92)),
        ("slow", hand_made(60, loss=np.linspace(CHANCE, 1.2, 60), val_accuracy=0.6)),
        ("never moved", hand_made(60, loss=CHANCE, val_accuracy=0.1, probe_loss=CHANCE)),
        ("slow", hand_made(60, loss=CHANCE, val_accuracy=0.2, probe_loss=CHANCE)),
        ("dead", hand_made(60, loss=CHANCE, val_accuracy=0.1, probe_loss=CHANCE, probe_accuracy=0.1, dead=0.9)),
        ("diverged", hand_made(60, loss=np.linspace(2.3, 40, 60), val_accuracy=0.1)),
        ("diverged", hand_made(60, facts={"first_nonfinite": {"step": 3, "stage": "loss", "place": "loss"}})),
        ("error", hand_made(60, facts={"error": {"kind": "RuntimeError", "message": "", "step": 0}})),
    ],
)
def test_the_outcome_is_read_off_the_run(expected, run):
    assert outcome(run) == expected


def test_on_photographs_less_is_learned():
    run = hand_made(60, val_accuracy=0.4)
    assert outcome(run, "cifar10") == "learned" and outcome(run, "mnist") == outcome(run, "mine") == "slow"


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"lr": (0.1,)}, "two or three axes"),
        ({"lr": 0.1, "depth": (2,)}, "lr: expected a list of values, got 0.1"),
        ({"lr": (), "depth": (2,)}, "lr: expected a list"),
        ({"lr": (0.1,), "activation": "relu"}, "activation: expected a list"),
        ({"lr": (0.1,), "depht": (2,)}, "Did you mean 'depth'"),
        ({"lr": (-1.0,), "depth": (2,)}, "lr: expected a number above 0"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_before_the_first_run(axes, words):
    with pytest.raises(RecipeError, match=words):
        Phase(BASE, axes)


def test_a_cell_that_is_not_there_says_why():
    with pytest.raises(RecipeError, match="no cell"):
        Phase(BASE, AXES)[7, 2]
    with pytest.raises(RecipeError, match="was not trained"):
        Phase(BASE, AXES)[0.1, 2]
    with pytest.raises(RecipeError, match="jobs"):
        list(Phase(BASE, AXES).explore(jobs=0))


# --- the picture ----------------------------------------------------------------------------------


def known(axes: dict, **traces) -> Phase:
    made = Phase(BASE, axes)
    made.cells = {place: Cell(recipe, hand_made(60, **traces)) for place, recipe in made.recipes.items()}
    return made


def test_every_outcome_has_a_letter_and_a_colour_of_its_own():
    assert set(MARKS) == set(OUTCOMES)
    letters, fills, _ = zip(*MARKS.values(), strict=True)
    assert len(set(letters)) == len(set(fills)) == len(MARKS)


def test_the_picture_has_letter_and_accuracy_of_every_cell_and_says_which_are_missing():
    found = known(AXES, val_accuracy=0.92)
    del found.cells[0.1, 2]
    ax = phase_diagram(found)
    texts = [text.get_text() for text in ax.texts]
    assert texts.count("L") == texts.count("92%") == 5 and len(ax.patches) == 6
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1e-06", "0.1", "10000"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["L  learned"]


def test_a_third_axis_has_pages():
    found = known(AXES | {"activation": ("relu", "tanh")}, val_accuracy=0.92)
    for place in [place for place in found.cells if place[2] == "tanh"]:
        del found.cells[place]
    assert "activation relu" in found.plot().get_title(loc="left") and found.plot().get_legend()
    assert found.plot(page="tanh").get_legend() is None
    with pytest.raises(RecipeError, match="page: expected one of relu, tanh"):
        found.plot(page="gelu")
