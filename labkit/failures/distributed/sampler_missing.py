"""Two processes and no sampler between them: both work through the same batches, and the second adds nothing."""

from labkit.training import processes as distributed
from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.training.parts import shuffled
from labkit.training.recipe import Recipe
from labkit.recording.run import Run

# Share of a process's first epoch that another process saw too. Dealt by a sampler: 0 to 0.001 (an epoch is counted up
# to the first sample that comes again, which may be one or two too many); the same order in both: 1.
# Two orders of their own (different seeds) over one data set meet by chance, and within a whole epoch entirely.
OVERLAP = 0.5

healthy = Recipe(
    processes=2, batches=distributed.dealt, step=distributed.averaging_step,
    samples=4096, batch_size=32, steps=256, evaluate_every=64, lr=0.05,
)  # fmt: skip
sick = healthy.but(batches=shuffled)


def signature(run: Run) -> Evidence | None:
    overlap, processes = run.facts.get("rank_overlap") or 0.0, run.facts.get("processes") or 1
    if processes < 2 or not overlap > OVERLAP:
        return None
    return Evidence(
        seen=f"{overlap:.0%} of the samples of one process's first epoch went through another of the {processes} too",
        usual="0 %: each has a share of its own",
        onset=0,
        place="process 0",
        confidence=0.95,
    )


failure = FailureMode(
    title="Sampler missing",
    healthy=healthy,
    sick=sick,
    cures={"a DistributedSampler, which deals each process its own part": sick.but(batches=distributed.dealt)},
    false_cures={"four processes instead of two": sick.but(processes=4)},
    signature=signature,
    harm=0.01,
    costs="Two processes do the work of one: an epoch takes twice the steps, and the mean of two equal gradients is as "
    "noisy as one of them.",
    symptom="Training works, an epoch has as many steps as in one process, and adding processes makes nothing faster. "
    "At a learning rate meant for the joint batch the loss is noisier than it should be.",
    mechanism="Each process shuffles the whole set with the same seed, so all of them draw the same batch at the same "
    "step and compute the same gradient. Its mean is that gradient again: the joint batch is no larger than one.",
    first_check="Steps per epoch: samples / (batch size x processes). Or print the first labels of a batch in each "
    "process: they must differ.",
    remedy="Pass a DistributedSampler to the loader, and call its set_epoch before every epoch.",
    reference="Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training (2020)",
    looks="stops too high",
    shows="val_accuracy",
    knobs=(
        Knob("batch_size", (16, 128), log=True),
        Knob("lr", (0.01, 0.2), log=True),
        Knob("processes", (2, 3, 4)),
    ),
    cifar10="It is about how samples are dealt out and not about what they show: photographs would only take longer.",
    also_causes=(
        "batch_too_small",
        "overconfidence",
    ),
)
