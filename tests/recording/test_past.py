"""Long runs: memory is bounded, recent steps are exact, and what happened long ago is still there."""

import gc
import sys

import numpy as np
import pytest
import torch
from torch import nn

from labkit.diagnosis.watch import watch
from labkit.recording import past, recorder
from labkit.recording.past import FEWEST, MOST, Past, chapter_length
from labkit.recording.run import Run

SHORT = 64  # steps of a chapter here: a multiple of the blocks in which activations and weights are measured


# --- the past alone -------------------------------------------------------------------------------


def chapters(count: int, most: int = 100, notable=()) -> Past:
    """Traces whose values are their steps."""
    made = Past(most)
    for number in range(count):
        steps = np.arange(number * most, (number + 1) * most)
        made.notable += [step for step in notable if step in steps]
        made.add({"step": steps, "loss": steps * 1.0, "grad_norm": np.stack([steps, -steps], 1)})
    return made


@pytest.mark.parametrize("count", [1, 2, 3, 7, 50])
def test_never_more_than_the_most_and_evenly_distributed(count):
    made = chapters(count)
    steps = made.traces["step"]
    assert (
        len(steps) <= 100 and (made.traces["loss"] == steps).all() and (made.traces["grad_norm"][:, 1] == -steps).all()
    )
    assert (np.diff(steps) == made.stride).all() and steps[0] == 0 and steps[-1] > (count - 1) * 100
    assert (made.stride == 1) == (count == 1)


def test_what_happened_is_kept_and_more_of_it_than_fits_is_not():
    assert {111, 4321} <= set(chapters(50, notable=(111, 4321)).traces["step"].tolist())
    made = chapters(50, notable=range(0, 5000, 3))
    assert len(made.traces["step"]) <= 100 and made.traces["step"][0] == 0


def test_an_instrument_that_was_switched_off_has_no_past():
    made = chapters(2)
    made.add({"step": np.arange(200, 300), "loss": np.zeros(100)})
    assert made.traces.keys() == {"step", "loss"}


def test_chapters_are_shorter_where_a_step_has_many_numbers():
    assert chapter_length(100) == MOST and chapter_length(10**9) == FEWEST
    assert FEWEST < chapter_length(4000) < MOST and 8 * 4000 * chapter_length(4000) <= past.BUDGET


# --- a watched loop -------------------------------------------------------------------------------


@pytest.fixture
def short_chapters(monkeypatch):
    monkeypatch.setattr(recorder, "chapter_length", lambda columns: SHORT)


def loop(steps: int, broken_at: int | None = None, full_every: int = 8, at_the_end=lambda record: None):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    random = torch.Generator().manual_seed(1)
    data, others = torch.randn(200, 6, generator=random), torch.randn(50, 6, generator=random)
    classes = (data[:, 0] > 0).long() + (data[:, 1] > 0)
    with watch(net, optimizer, full_every=full_every, strict=True) as record:
        for step in range(steps):
            chosen = torch.randint(200, (16,), generator=random)
            x, y = data[chosen], classes[chosen]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y) * (50 if step == broken_at else 1)
            loss.backward()
            optimizer.step()
            record.step(loss, batch=(x, y))
            if step % 50 == 49:
                with torch.no_grad():
                    net(others)
                record.validation(loss=loss, accuracy=0.5)
        at_the_end(record)
    return record


@pytest.mark.parametrize("full_every", [1, 8, 10])
def test_what_is_kept_is_what_was_measured(full_every, short_chapters, monkeypatch):
    """A run in chapters has the same numbers as one that was recorded in one piece."""
    thinned = loop(330, full_every=full_every).run
    monkeypatch.undo()
    whole = loop(330, full_every=full_every).run
    rows = np.searchsorted(whole["step"], thinned["step"])
    recent = thinned["step"] >= 5 * SHORT
    assert recent.sum() == 330 - 5 * SHORT and len(thinned) <= 2 * SHORT < len(whole)
    for name in ("loss", "lr", "grad_norm", "weight_norm", "update_norm", "grad_mean", "grad_std", "label_entropy"):
        np.testing.assert_allclose(thinned[name], whole[name][rows], rtol=1e-5, err_msg=name)
    both = thinned.measured_in_full & whole.measured_in_full[rows]
    assert both.sum() >= 8
    for name in ("activation_mean", "grad_min", "grad_max", "grad_near_zero"):
        np.testing.assert_allclose(thinned[name][both], whole[name][rows][both], rtol=1e-4, atol=1e-6, err_msg=name)
    for name in ("batch_length", "label_shares", "relabelled", "order_repeats", "classes", "val_changed"):
        assert thinned.facts[name] == whole.facts[name], name


def test_a_long_run_is_saved_diagnosed_and_reported(short_chapters, tmp_path):
    record = loop(500)
    run = Run.load(record.run.save(tmp_path / "run.npz"))
    assert run["step"][-1] == 499 and run.facts["thinned"]["stride"] > 1
    assert record.diagnose() == [] and f"of 500: one in {run.facts['thinned']['stride']}" in record.report()


def test_a_jump_long_ago_is_still_there(short_chapters):
    run = loop(700, broken_at=130).run
    assert 130 in run["step"]
    assert run["loss"][list(run["step"]).index(130)] > 10 * np.median(run["loss"])


def test_memory_does_not_grow_with_the_steps(short_chapters):
    """Ten times as many steps, hardly more memory: 200 MB would be far away after a million."""
    sizes = {}
    for steps in (8 * SHORT, 80 * SHORT):
        loop(steps, at_the_end=lambda record, steps=steps: sizes.update({steps: bytes_of(record)}))
    few, many = sizes.values()
    samples = 16 * 72 * SHORT * 16  # fingerprints and labels of at most KEPT samples: 16 bytes each
    assert many - samples - few < 0.5 * few


def bytes_of(record) -> int:
    """All that the watch holds: numbers, arrays, tensors, lists."""
    record.run  # noqa: B018  # what waits is measured
    seen, total, todo = {id(record.model), id(torch), id(np)}, 0, [vars(record)]
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, type | type(sys) | type(gc.collect) | type(bytes_of)):
            continue
        seen.add(id(thing))
        total += thing.nbytes if isinstance(thing, np.ndarray | torch.Tensor) else sys.getsizeof(thing)
        if not isinstance(thing, np.ndarray | torch.Tensor | nn.Module):
            todo += gc.get_referents(thing)
    return total


def test_many_skipped_steps_do_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(recorder, "MOST_EVENTS", 3)
    net = nn.Linear(2, 1)
    with watch(net, torch.optim.SGD(net.parameters(), lr=0.1), strict=True) as record:
        for step in range(20):
            record.step(float("nan") if step % 2 else 1.0)
    assert len(record.run.events) == 3


def test_a_chapter_begins_with_numbers(short_chapters):
    run = loop(3 * SHORT + 5, full_every=10).run
    assert np.isfinite(run["activation_mean"]).all() and np.isfinite(run["grad_max"]).all()


def test_layers_that_are_added_do_not_break_the_past():
    made = chapters(1)
    made.add({"step": np.arange(100, 200), "loss": np.zeros(100), "grad_norm": np.zeros((100, 3))})
    assert made.traces.keys() == {"step", "loss"}


def test_a_row_is_found_by_its_step(short_chapters):
    run = loop(500).run
    assert run.row_of(0) == 0 and run["step"][run.row_of(499)] == 499
    assert run["step"][run.row_of(101)] >= 101
