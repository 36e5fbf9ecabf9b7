"""The training loop, on one screen, and the facts that are recorded with it."""

import contextlib
import copy
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from labkit.errors import RecipeError
from labkit.recording.recorder import FULL_EVERY, LossRecorder, Recorder
from labkit.recording.run import Run
from labkit.tools.sharpness import perturbed_rise, top_eigenvalue
from labkit.training.memory import memory_errors_in_words, weights_within_memory
from labkit.training.recipe import COUNT, Recipe
from labkit.training.state import TrainingState, seeded

PROBE = 512  # training images examined at every validation; a unit that is 0 on all of them counts as dead
SHARPNESS_SAMPLES = 128  # for the curvature at the end of a run: 10 Hessian-vector products in about 30 ms
TOKENS_PER_IMAGE = 12  # a probe of 125 sequences of 49 tokens takes about as long as two training steps of 32
UNFINISHED = ("on request", "interrupted")  # how a run ends that somebody stopped
EachStep = Callable[[Any], object]  # receives the recorder; to return True stops the run


def train(
    recipe: Recipe,
    *,
    instruments: bool = True,
    each_step: EachStep | None = None,
    progress: bool = True,
    errors: str = "raise",
    full_every: int = FULL_EVERY,
) -> Run:
    """Train a recipe and return everything that was recorded.

    `each_step(recorder)` is called after every step; if it returns True, training stops there. (A run in several
    processes ignores it.) Ctrl-C stops too, and what was recorded is kept. `instruments=False` records only the loss.
    An error in a step or in a validation is raised, or, with `errors="record"`, ends the run and is kept in
    `run.facts["error"]`. Losses, norms and means are measured at every step; activations, extremes and near-zero shares
    at the first 50 steps, after jumps, and at every 16th step, or at all with `full_every=1` or clipping by value.
    """
    if problem := COUNT.problem(full_every):
        raise RecipeError(f"full_every: {problem}")
    options: dict[str, Any] = {"instruments": instruments, "progress": progress, "errors": errors}
    options["full_every"] = full_every
    with memory_errors_in_words(recipe):
        if recipe.processes > 1:
            from labkit.training.processes import train_together  # few runs need it

            return train_together(recipe, **options)
        return Training(recipe).run(each_step=each_step, **options)


class Training(TrainingState):
    """One run of a recipe, with all instruments."""

    stopped: str | None = None  # why the run ended before its last step
    error: dict | None = None  # the error that ended it

    def __init__(self, recipe: Recipe):
        with weights_within_memory(recipe):
            super().__init__(recipe)

    def run(
        self,
        *,
        instruments: bool = True,
        each_step: EachStep | None = None,
        progress: bool = True,
        errors: str = "raise",
        full_every: int = FULL_EVERY,
    ) -> Run:
        """The loop. One step is `recipe.step`, which lets the recorder measure before the weights change."""
        recipe, began = self.recipe, time.perf_counter()
        order = torch.Generator().manual_seed(recipe.seed)
        evaluations = evaluation_steps(recipe.steps, recipe.evaluate_every)
        recorder = self.recorder = self.new_recorder(instruments, full_every)
        with seeded(recipe.seed), few_threads(), recorder:
            batches = recipe.batches(self.data.train, recipe, order)
            bar = tqdm(range(recipe.steps), delay=2, leave=False, disable=None if progress else True, unit="step")
            with self.ended_by_errors(errors), bar:
                for step, (x, y) in zip(bar, batches, strict=False):
                    if step in evaluations:
                        recorder.validate(**recipe.evaluate(self, self.data.val))
                    self.set_lr(recipe.schedule(step, recipe))
                    recipe.step(self, x, y)
                    if recorder.hopeless or (each_step and each_step(recorder)):
                        self.stopped = "non-finite" if recorder.hopeless else "on request"
                        break
            self.is_last_evaluation = True
            with self.ended_by_errors(errors):
                if evaluations:
                    recorder.validate(**recipe.evaluate(self, self.data.val))
        return recorder.as_run(recipe.summary(), **self.facts(recorder, began))

    @contextlib.contextmanager
    def ended_by_errors(self, errors: str) -> Iterator[None]:
        """Ctrl-C, and with "record" an error too, ends this part of the run; what was recorded is kept."""
        try:
            yield
        except KeyboardInterrupt:
            self.stopped = "interrupted"
        except Exception as error:
            if errors != "record":
                raise
            self.stopped = self.stopped or "error"  # an error of the last validation does not undo Ctrl-C
            self.error = self.error or error_facts(error, self.recorder.steps)  # of two, the first is the cause

    def new_recorder(self, instruments: bool, full_every: int = FULL_EVERY) -> LossRecorder:
        if not instruments:
            return LossRecorder(self.optimizer, self.device)
        x, y = self.data.train
        count = few(x, PROBE)
        probe = x[:count], y[:count]
        options: dict[str, Any] = {"loss": self.recipe.loss, "autocast": self.autocast}
        options["full_every"] = 1 if clips_values(self.recipe) else full_every
        return Recorder(self.model, self.optimizer, probe=probe, **options)

    # --- facts that are recorded with the traces ---

    def facts(self, recorder: LossRecorder, began: float) -> dict[str, Any]:
        labels = self.data.train.y
        facts = {
            "classes": self.data.classes,
            "samples": len(labels),
            "batch_size": min(self.recipe.batch_size, len(labels)),
            "clip": self.recipe.clip,
            "clip_by": self.recipe.clip_by,
            "planned_steps": self.recipe.steps,
            "stopped": self.stopped,
            "error": self.error,
            "device": self.device.type,
            "torch": torch.__version__,
            "weights_sha256": weights_checksum(self.model),
            "measure": self.recipe.measure,
        }
        if not recorder.hopeless and not self.error:  # no curvature of a net that cannot take a step
            facts |= self.sharpness()
        return facts | self.noted | {"seconds": round(time.perf_counter() - began, 3)}

    def sharpness(self) -> dict[str, float]:
        """Curvature at the end of the run, in float32 and eval mode, on a copy of the net."""
        model = copy.deepcopy(self.model).float().eval()
        x, y = (part[: few(self.data.train.x, SHARPNESS_SAMPLES)] for part in self.data.train)
        measured = (model, self.recipe.loss, x.float() if x.is_floating_point() else x, y)
        return {
            "top_eigenvalue": top_eigenvalue(*measured, iterations=10),
            "perturbed_rise": perturbed_rise(*measured),
        }


def few(x: Tensor, samples: int) -> int:
    """How many samples to examine where so many images would be: each token of a sequence costs as much as an image."""
    return samples if x.is_floating_point() else max(16, TOKENS_PER_IMAGE * samples // x.shape[1])


def clips_values(recipe: Recipe) -> bool:
    """Then every step is measured in full: whether it was clipped shows in the largest entry of its gradient."""
    return recipe.clip is not None and recipe.clip_by == "value"


def error_facts(error: BaseException, step: int) -> dict[str, Any]:
    """An error as plain values: its kind, its message, and the step at which it happened."""
    return {"kind": type(error).__name__, "message": str(error), "step": step}


def evaluation_steps(steps: int, every: int | None) -> frozenset[int]:
    """Before which steps to validate: often early (an overfitting U-turn may be over by step 15), rarely later."""
    if every is not None:
        return frozenset(range(0, steps, every)) if every else frozenset()
    widest, chosen, step = max(1, steps // 16), [], 0
    while step < steps:
        chosen.append(step)
        step += min(widest, max(1, step // 4))
    return frozenset(chosen)


@contextlib.contextmanager
def few_threads() -> Iterator[None]:
    """One torch thread, or $LABKIT_THREADS, while a run trains.

    On nets of this size a second thread saves a fifth of the time on an idle machine. On a busy one the threads wait
    for each other at every operation, and training takes twenty times as long.
    """
    asked, before = os.environ.get("LABKIT_THREADS", "1"), torch.get_num_threads()
    if not asked.isdecimal() or int(asked) < 1:
        raise RecipeError(f"LABKIT_THREADS: expected a whole number at least 1, got {asked!r}")
    torch.set_num_threads(int(asked))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def weights_checksum(model: torch.nn.Module) -> str:
    """A checksum of all weights, to tell whether two runs ended with identical weights."""
    digest = hashlib.sha256()
    for weight in model.parameters():
        digest.update(weight.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
