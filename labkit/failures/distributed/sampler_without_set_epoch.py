"""A DistributedSampler that is never told the epoch: it deals the same samples in the same order every time."""

from labkit.training import processes as distributed
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Share of samples that come in the same order as an epoch before. With set_epoch below 0.01; without it 1.
REPEATS = 0.9

healthy = Recipe(
    processes=2, batches=distributed.dealt, step=distributed.averaging_step,
    samples=4096, batch_size=64, steps=160, evaluate_every=32,
)  # fmt: skip


def dealt_without_set_epoch(split, recipe, generator):
    """Each process gets its own share, but nobody tells the sampler that a new epoch begins."""
    return distributed.dealt_by(distributed.sampler(split, recipe), split, recipe, each_epoch=nothing)


def nothing(sampler, epoch: int) -> None:
    """Where `sampler.set_epoch(epoch)` should stand."""


sick = healthy.but(batches=dealt_without_set_epoch)


def signature(run: Run) -> Evidence | None:
    repeats, processes = run.facts.get("order_repeats") or 0.0, run.facts.get("processes") or 1
    if processes < 2 or not repeats > REPEATS:
        return None
    epoch = round((run.facts.get("samples") or 0) / processes / (run.facts.get("batch_length") or 1))
    return Evidence(
        seen=f"{repeats:.0%} of the samples come in the same order as an epoch before; {processes} processes train",
        usual="less than 1 %",
        onset=min(epoch, len(run)),
        place="process 0",
        confidence=0.95,
    )


failure = FailureMode(
    title="Sampler that repeats its order",
    healthy=healthy,
    sick=sick,
    cures={"set_epoch before every epoch": sick.but(batches=distributed.dealt)},
    false_cures={"smaller batches: 32": sick.but(batch_size=32)},
    signature=signature,
    harm=0.0,
    costs="Shuffling happens once: every image meets the same neighbours in the same batch, epoch after epoch, and "
    "each process only ever sees its own half. On digits it cost from nothing to three points, by the seed.",
    symptom="Nothing in the curves. The processes see different samples, as they should, but each sees its own in one "
    "and the same order for ever.",
    mechanism="The sampler shuffles with seed + epoch, and the epoch stays 0 unless the loop sets it. All processes "
    "need the same order to share it out, which is why it cannot count by itself.",
    first_check="The first ten labels of two epochs: they must differ. Not whether the processes differ: they do.",
    remedy="Call sampler.set_epoch(epoch) before each epoch.",
    reference="PyTorch documentation, torch.utils.data.distributed.DistributedSampler (2024), the warning on set_epoch",
    looks="nothing",
    shows="val_accuracy",
    knobs=(
        Knob("batch_size", (16, 128), log=True),
        Knob("lr", (0.01, 0.2), log=True),
        Knob("processes", (2, 3, 4)),
    ),
    cifar10="It is about how samples are dealt out and not about what they show: photographs would only take longer.",
)
