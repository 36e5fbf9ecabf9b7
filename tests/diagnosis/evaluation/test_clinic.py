"""The clinic: outcomes are counted as they are, and a broken contract is said."""

import dataclasses
import json

import pytest
from helpers import tiny, trained

from labkit.cli.main import main
from labkit.diagnosis.evaluation import contract
from labkit.diagnosis.study import play
from labkit.errors import RecipeError
from labkit.failures.catalogue import FAILURES
from labkit.training import run_store
from labkit.training.parallel import on_cluster

KEPT = contract.Outcome(
    name="dead_relu",
    seed=0,
    fails=True,
    named=True,
    cured=True,
    clean=True,
    score={"healthy": 0.94, "sick": 0.11, "cured": 0.95},
    verdict=("dead_relu",),
    seconds=2.0,
)
BROKEN = dataclasses.replace(KEPT, seed=1, named=False, verdict=("vanishing_gradients", "dead_relu"), seconds=4.0)


def test_each_demand_is_counted_over_the_seeds():
    _, row = contract.table([KEPT, BROKEN])
    assert row == ("dead_relu", "2/2", "1/2", "2/2", "2/2", "94 %", "11 %", "95 %", "3.0")


def test_a_broken_contract_is_named_with_its_seed():
    words = contract.outcomes_as_text([KEPT, BROKEN])
    assert "1 modes, 2 studies, 1 kept the whole contract" in words
    assert "dead_relu, seed 1: not named; diagnosed: vanishing_gradients, dead_relu" in words
    assert contract.broken([KEPT]) == []


@pytest.mark.parametrize("test", contract.CHECKS)
def test_any_demand_can_break_it(test):
    assert KEPT.kept and not dataclasses.replace(KEPT, **{test: False}).kept


def test_a_study_is_judged_by_what_it_is():
    mode = FAILURES["learning_rate_too_low"]
    recipes = {role: tiny(lr=lr) for role, lr in (("healthy", 0.1), ("sick", 1e-6), ("cured", 0.1))}
    for recipe in recipes.values():
        run_store.in_memory.put(recipe, trained(recipe))
    outcome = contract.judge(play(mode, recipes, run_store.in_memory))
    assert outcome.named and not outcome.cured and not outcome.clean  # six steps are too few to learn
    assert outcome.score["sick"] < outcome.score["healthy"]


def test_the_page_says_under_which_conditions():
    page = contract.in_markdown([KEPT, BROKEN], "cifar10")
    assert "labkit clinic --contract --seeds 2 --dataset cifar10" in page and "torch" in page
    assert "| `dead_relu` | 2/2 | 1/2 |" in page and "- dead_relu, seed 1" in page


def test_the_command_begins_with_the_seed_it_is_told(monkeypatch, capsys, tmp_path):
    asked = []
    monkeypatch.setattr(contract, "contract", lambda names, seeds, **_: asked.append(list(seeds)) or [BROKEN])
    main(["clinic", "--contract", "--first", "1", "--seeds", "2", "--out", str(tmp_path / "page.md")])
    main(["clinic", "--contract"])
    assert asked == [[1, 2], [0, 1, 2, 3, 4]]
    assert f"--seeds 1 --first {BROKEN.seed}`" in (tmp_path / "page.md").read_text()


def test_the_command_counts_and_fails_where_a_contract_is_broken(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(contract, "contract", lambda names, **_: [KEPT])
    assert main(["clinic", "--contract", "--out", str(tmp_path / "page.md")]) == 0
    assert "`dead_relu`" in (tmp_path / "page.md").read_text(encoding="utf-8")
    capsys.readouterr()
    monkeypatch.setattr(contract, "contract", lambda names, **_: [KEPT, BROKEN])
    assert main(["clinic", "--contract", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[1]["named"] is False


def test_bad_wishes_are_refused_before_anything_is_trained():
    with pytest.raises(RecipeError, match="jobs"):
        contract.contract(jobs=0)
    with pytest.raises(KeyError, match="Did you mean 'dead_relu'"):
        contract.contract(["dead_rellu"])


def test_a_dask_cluster_can_do_the_work():
    dask = pytest.importorskip("dask.distributed", reason="dask is not installed")
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with dask.LocalCluster(**options) as cluster, on_cluster(cluster.scheduler_address):
        [outcome] = contract.contract(["learning_rate_too_low"], seeds=[0])
    assert outcome.kept
