"""Lesson 09: the usual mistakes are told what they are, and right answers are right."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import labkit
from labkit.course.exercises import lesson_09


def shared(train, val):
    known = {image.numpy().tobytes() for image in train}
    return sum(image.numpy().tobytes() in known for image in val)


def by_place(train, val):
    return sum(torch.equal(one, two) for one, two in zip(train, val, strict=False))


def by_sum(train, val):
    known = {round(image.sum().item(), 4) for image in train}
    return sum(round(image.sum().item(), 4) in known for image in val)


def pairs(train, val):
    return sum(torch.equal(one, two) for one in train for two in val)


def distinct(train, val):
    return len({image.numpy().tobytes() for image in train} & {image.numpy().tobytes() for image in val})


def nearly(train, val):
    return sum(bool((train - image).abs().amax((1, 2, 3)).min() < 0.1) for image in val)


def tensors_in_a_set(train, val):
    return sum(image in set(train) for image in val)


def name_the_bug(loader, *, twice=True, held_out=True, spread=True):
    """An exam for a loader, with one test left out, or none."""
    batches = list(loader)
    x, y = (torch.cat(each) for each in zip(*batches, strict=True))
    if x.std() < 1e-6:
        return "blank"
    if len(y.unique()) == 1:
        return "one class"
    if spread and sum(len(labels.unique()) for _, labels in batches) < 3 * len(batches):
        return "sorted"
    before = {image.numpy().tobytes(): label.item() for image, label in zip(x, y, strict=True)}
    again = [pair for batch in loader for pair in zip(*batch, strict=True)] if twice else []
    if any(before.get(image.numpy().tobytes(), label) != label for image, label in again):
        return "labels move"
    half = len(y) // 2
    means = torch.stack([x[:half][y[:half] == k].mean(0).flatten() for k in range(10)]).nan_to_num()
    nearest = torch.cdist(x[half:].flatten(1), means).argmin(1)
    right = (nearest == y[half:]).float().mean() > 0.3
    return "fine" if right or not held_out else "shuffled"


def class_weights(labels, classes, *, scale=True, empty=True):
    counts = labels.bincount(minlength=classes).float()
    weights = torch.where(counts > 0, 1 / counts.clamp(min=1), torch.zeros(classes)) if empty else 1 / counts
    return weights * len(labels) / (weights * counts).sum() if scale else weights


def plain_train(model, optimizer, loader):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def clipping_train(model, optimizer, loader):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()


def skipping_train(model, optimizer, loader):
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        if torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf")) < 20:
            optimizer.step()


def gives_up(model, optimizer, loader):
    for x, y in list(loader)[:45]:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def cousins(train, val, *, shifts=(-1, 0, 1), centred=True, closest=0.98):
    def profile(x):
        x = x.flatten(1) - (x.flatten(1).mean(1, keepdim=True) if centred else 0)
        return x / x.norm(dim=1, keepdim=True)

    known, best = profile(train), torch.zeros(len(val))
    for down in shifts:
        for across in shifts:
            best = torch.maximum(best, (profile(val.roll((down, across), (2, 3))) @ known.T).amax(1))
    return int((best > closest).sum())


BAD = {"failure": "corrupt_sample", "place": f"batch {lesson_09.BAD}", "evidence": "input_max", "value": 1000.0}
EXPERIMENTS = {"A": "follow one image through two epochs", "B": "gap in the first epoch"}
EXPERIMENTS |= {"C": "cover parts of the inputs", "D": "count identical images"}
RIGHT = [
    ("09.1", name_the_bug),
    ("09.2", shared),
    ("09.3", class_weights),
    ("09.4", clipping_train),
    ("09.4", skipping_train),
    ("09.6", EXPERIMENTS),
    ("09.7", cousins),
]
WRONG = [
    ("09.1", lambda loader: "fine", 'that is "blank"'),
    ("09.1", lambda loader: name_the_bug(loader, twice=False), "Go through the loader twice"),
    ("09.1", lambda loader: name_the_bug(loader, held_out=False), "alike"),
    ("09.1", lambda loader: name_the_bug(loader, spread=False), '"sorted"'),
    ("09.1", lambda loader: "broken", "Expected one of fine"),
    ("09.2", by_place, "index by index"),
    ("09.2", by_sum, "must depend on the order"),
    ("09.2", pairs, "count pairs"),
    ("09.2", distinct, "three times in validation"),
    ("09.2", nearly, "near copies"),
    ("09.2", tensors_in_a_set, "Equal tensors have different hashes"),
    ("09.3", lambda labels, classes: class_weights(labels, classes, scale=False), "Make it 1"),
    ("09.3", lambda labels, classes: class_weights(labels, classes, empty=False), "infinite weight"),
    ("09.3", lambda labels, classes: labels.bincount(minlength=classes).float(), "do not multiply"),
    ("09.4", plain_train, "a correct loop reaches"),
    ("09.4", gives_up, "the loader has 63 batches"),
    ("09.5", BAD | {"failure": "corrupt_batch"}, "nearly"),
    ("09.5", BAD | {"place": "batch 144"}, "does not begin"),
    ("09.5", BAD | {"evidence": "loss"}, "does not tell this failure"),
    ("09.5", BAD | {"value": 3.0}, "Read it again"),
    ("09.6", EXPERIMENTS | {"A": "memorise 32 images"}, "both pass"),
    ("09.6", EXPERIMENTS | {"C": "gap in the first epoch"}, "the same leak"),
    ("09.7", shared, "was not found"),
    ("09.7", lambda train, val: cousins(train, val, shifts=(0,)), "shifted"),
    ("09.7", lambda train, val: cousins(train, val, closest=0.7), "no image of this pair"),
]


@pytest.mark.parametrize(("id", "answer"), RIGHT)
def test_a_right_answer_is_right(id, answer):
    found = labkit.check(id, answer)
    assert found, found


@pytest.mark.parametrize(("id", "answer", "words"), WRONG)
def test_a_usual_mistake_is_told_what_it_is(id, answer, words):
    found = labkit.check(id, answer)
    assert found.state == "not yet" and words.lower() in str(found).lower(), found


@pytest.mark.parametrize("seed", [30, 31, 32])
@pytest.mark.parametrize("name", lesson_09.NAMES)
def test_a_faulty_loader_has_its_fault_with_other_seeds_too(name, seed):
    assert name_the_bug(lesson_09.faulty_loader(name, seed)) == name


@pytest.mark.slow
def test_the_sealed_run_shows_what_its_key_says():
    run = lesson_09.sealed()
    worst = int(run["input_max"].argmax())
    answer = BAD | {"place": f"batch {worst}", "value": run["input_max"][worst]}
    assert labkit.check("09.5", answer)
    assert labkit.diagnose(run)[0].name == "corrupt_sample"


def test_every_experiment_that_does_not_help_is_answered():
    for question, right in EXPERIMENTS.items():
        for other in {*EXPERIMENTS.values(), "memorise 32 images", "lower the learning rate"} - {right}:
            found = labkit.check("09.6", EXPERIMENTS | {question: other})
            assert found.state == "not yet" and "not a choice" not in str(found), (question, other)
