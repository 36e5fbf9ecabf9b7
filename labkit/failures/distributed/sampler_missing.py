"""Two processes without a DistributedSampler: both train on the same batches, and the second adds nothing."""

from labkit.failures.mode import Evidence, FailureMode, Knob
from labkit.recording.run import Run
from labkit.training import processes
from labkit.training.parts import shuffled
from labkit.training.recipe import Recipe

# Share of a process's first epoch that another process also used. Split by a sampler: 0 to 0.001 (an epoch is counted
# up to the first repeated sample, which may be one or two too many); the same order in both: 1. Two independent orders
# (different seeds) over the whole data set overlap by chance, and over a whole epoch completely.
OVERLAP = 0.5

healthy = Recipe(
    processes=2, batches=processes.dealt, step=processes.averaging_step,
    samples=4096, batch_size=32, steps=256, evaluate_every=64, lr=0.05,
)  # fmt: skip
sick = healthy.but(batches=shuffled)


def signature(run: Run) -> Evidence | None:
    overlap, processes = run.facts.get("rank_overlap") or 0.0, run.facts.get("processes") or 1
    if processes < 2 or not overlap > OVERLAP:
        return None
    return Evidence(
        seen=f"{overlap:.0%} of the samples in one process's first epoch were also used by another of the {processes}",
        usual="0 %: each process has its own share",
        onset=0,
        place="process 0",
        confidence=0.95,
    )


failure = FailureMode(
    __name__,
    healthy,
    sick,
    signature,
    title="Sampler missing",
    cures={"a DistributedSampler, which gives each process its own share": sick.but(batches=processes.dealt)},
    false_cures={"four processes instead of two": sick.but(processes=4)},
    harm=0.0,
    costs="Two processes do the work of one: an epoch takes twice the steps, and the mean of two equal gradients is "
    "as noisy as a single one.",
    symptom="Training works, but an epoch takes as many steps as with one process: more processes are no faster. At a "
    "learning rate meant for the combined batch the loss is noisier than it should be.",
    mechanism="Each process shuffles the whole set with the same seed, so all of them draw the same batch at the same "
    "step and compute the same gradient. Averaging changes nothing: the effective batch is no larger than one.",
    formula=r"\frac{1}{P} \sum_{p=1}^{P} g(B) = g(B) \quad \text{with the same batch } B \text{ in every process}",
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
    not_on_cifar10="It concerns how samples are split among processes, not their content: photographs would only take "
    "longer.",
    also_causes=(
        "batch_too_small",
        "overconfidence",
    ),
)
