"""A DistributedSampler without set_epoch: it yields the same samples in the same order every epoch."""

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training import processes
from labkit.training.recipe import Recipe

# Share of samples that come in the same order as in the previous epoch. With set_epoch below 0.01; without it 1.
REPEATS = 0.9

healthy = Recipe(
    processes=2, batches=processes.dealt, step=processes.averaging_step,
    samples=4096, batch_size=64, steps=160, evaluate_every=32,
)  # fmt: skip


def dealt_without_set_epoch(split, recipe, generator):
    """Each process gets its own share, but the sampler is never told that a new epoch starts."""
    return processes.dealt_by(processes.sampler(split, recipe), split, recipe, each_epoch=skip_set_epoch)


def skip_set_epoch(sampler, epoch: int) -> None:
    """`sampler.set_epoch(epoch)` is missing here."""


sick = healthy.but(batches=dealt_without_set_epoch)


def signature(run: Run) -> Evidence | None:
    repeats, processes = run.facts.get("order_repeats") or 0.0, run.facts.get("processes") or 1
    if processes < 2 or not repeats > REPEATS:
        return None
    epoch = round((run.facts.get("samples") or 0) / processes / (run.facts.get("batch_length") or 1))
    return Evidence(
        seen=f"{repeats:.0%} of the samples come in the same order as in the previous epoch; {processes} processes",
        usual="less than 1 %",
        onset=min(epoch, len(run)),
        place="process 0",
        confidence=0.95,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Sampler that repeats its order",
    cures={"set_epoch before every epoch": sick.but(batches=processes.dealt)},
    false_cures={"smaller batches: 32": sick.but(batch_size=32)},
    harm=0.0,
    costs="Shuffling happens only once: every image shares its batch with the same images in every epoch, and each "
    "process only ever sees its own half. In five epochs on digits it cost less than a point.",
    symptom="Nothing in the curves. The processes see different samples, as they should, but each sees its own in the "
    "same order in every epoch.",
    mechanism="The sampler shuffles with seed + epoch, and the epoch stays 0 unless the loop sets it. All processes "
    "need the same order to split it, so the sampler cannot count epochs by itself.",
    formula=r"\text{order} = \mathrm{shuffle}(\text{seed} + \text{epoch}), \qquad \text{epoch} = 0",
    first_check="The first ten labels of two epochs: they must differ. Comparing processes does not help: they do "
    "differ.",
    remedy="Call sampler.set_epoch(epoch) before each epoch.",
    reference="PyTorch documentation, torch.utils.data.distributed.DistributedSampler (2024), the warning on set_epoch",
    looks="nothing",
    shows="val_accuracy",
    knobs=(
        Knob("batch_size", (16, 128), log=True),
        Knob("lr", (0.01, 0.2), log=True),
        Knob("processes", (2, 3, 4)),
    ),
    not_on_cifar10="It concerns how samples are split among processes, not their content: photographs would only take "
    "longer.",
)
