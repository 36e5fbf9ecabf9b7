"""The training loop, on one screen, and what is written down beside it."""

import contextlib
import copy
import hashlib
import os
import time

import torch
from tqdm.auto import tqdm

from labkit.recording.recorder import LossRecorder, Recorder
from labkit.training.rules import RecipeError
from labkit.training.recipe import Recipe
from labkit.recording.run import Run
from labkit.tools.sharpness import perturbed_rise, top_eigenvalue
from labkit.training.state import Workbench, seeded

PROBE = 512  # training images looked at again and again; enough to call a unit dead that is silent on all of them
SHARPNESS_SAMPLES = 128  # of the probe, for the curvature at the end: 10 Hessian products in some 30 ms


def train(
    recipe: Recipe, *, instruments: bool = True, each_step=None, progress: bool = True, errors: str = "raise"
) -> Run:
    """Train as the recipe says and return what the instruments saw.

    `each_step(recorder)` is called after every step; when it returns True, training stops there. (A run in
    several processes goes on to its end.) Ctrl-C stops too, and what was recorded is kept.
    `instruments=False` records the loss alone. An error in a step is raised, or, with `errors="record"`, ends
    the run and is kept among its facts.
    """
    options = {"instruments": instruments, "progress": progress, "errors": errors}
    if recipe.processes > 1:
        from labkit.training.processes import train_together  # only two of the failures need it

        return train_together(recipe, **options)
    return Training(recipe).run(each_step=each_step, **options)


class Training(Workbench):
    """One run on the workbench, with every instrument around it."""

    error: dict | None = None  # what ended it, where an error did

    def run(self, *, instruments: bool = True, each_step=None, progress: bool = True, errors: str = "raise") -> Run:
        """The loop. One step is `recipe.step`; the recorder looks on from inside it."""
        recipe, began, stopped = self.recipe, time.perf_counter(), None
        order = torch.Generator().manual_seed(recipe.seed)
        evaluations = evaluation_steps(recipe.steps, recipe.evaluate_every)
        recorder = self.recorder = self.new_recorder(instruments)
        with seeded(recipe.seed), few_threads(), recorder:
            batches = recipe.batches(self.data.train, recipe, order)
            bar = tqdm(range(recipe.steps), delay=2, leave=False, disable=None if progress else True, unit="step")
            try:
                for step, (x, y) in zip(bar, batches, strict=False):
                    if step in evaluations:
                        recorder.validate(**recipe.evaluate(self, self.data.val))
                    self.set_lr(recipe.schedule(step, recipe))
                    recipe.step(self, x, y)
                    if recorder.hopeless or (each_step and each_step(recorder)):
                        stopped = "non-finite" if recorder.hopeless else "on request"
                        break
            except KeyboardInterrupt:
                stopped = "interrupted"
            except Exception as error:
                if errors != "record":
                    raise
                stopped, self.error = "error", error_facts(error, recorder.steps)
            finally:
                bar.close()
            if evaluations:
                recorder.validate(**recipe.evaluate(self, self.data.val))
        return recorder.run(recipe.summary(), **self.facts(recorder, stopped, began))

    def new_recorder(self, instruments: bool) -> LossRecorder:
        if not instruments:
            return LossRecorder(self.optimizer, self.device)
        probe = [part[:PROBE] for part in self.data.train]
        return Recorder(self.model, self.optimizer, loss=self.recipe.loss, probe=probe, autocast=self.autocast)

    # --- what is written down beside the traces ---

    def facts(self, recorder, stopped: str | None, began: float) -> dict:
        labels = self.data.train.y
        facts = {
            "classes": self.data.classes,
            "samples": len(labels),
            "batch_size": min(self.recipe.batch_size, len(labels)),
            "clip": self.recipe.clip,
            "clip_by": self.recipe.clip_by,
            "planned_steps": self.recipe.steps,
            "stopped": stopped,
            "error": self.error,
            "device": self.device.type,
            "torch": torch.__version__,
            "weights_sha256": fingerprint(self.model),
        }
        if not recorder.hopeless and not self.error:  # a net that cannot take a step has no curvature to measure
            facts |= self.sharpness()
        return facts | {"seconds": round(time.perf_counter() - began, 3)}

    def sharpness(self) -> dict:
        """Curvature at the end of the run, in float32 and eval mode, on a copy of the net."""
        model = copy.deepcopy(self.model).float().eval()
        x, y = (part[:SHARPNESS_SAMPLES] for part in self.data.train)
        measured = (model, self.recipe.loss, x.float(), y)
        return {
            "top_eigenvalue": top_eigenvalue(*measured, iterations=10),
            "perturbed_rise": perturbed_rise(*measured),
        }


def error_facts(error: Exception, step: int) -> dict:
    """What is worth keeping of an error: its kind, its words, and the step it ended."""
    return {"kind": type(error).__name__, "message": str(error), "step": step}


def evaluation_steps(steps: int, every: int | None) -> frozenset[int]:
    """Before which steps to validate: dense early (an overfitting U-turn is over by step 15), sparse later."""
    if every is not None:
        return frozenset(range(0, steps, every)) if every else frozenset()
    widest, chosen, step = max(1, steps // 16), [], 0
    while step < steps:
        chosen.append(step)
        step += min(widest, max(1, step // 4))
    return frozenset(chosen)


@contextlib.contextmanager
def few_threads():
    """One torch thread, or $LABKIT_THREADS, while a run trains.

    On nets of this size a second thread saves a fifth of the time on an idle machine; on a busy one the threads
    wait for each other at every operation, and training takes twenty times as long.
    """
    asked, before = os.environ.get("LABKIT_THREADS", "1"), torch.get_num_threads()
    if not asked.isdecimal() or int(asked) < 1:
        raise RecipeError(f"LABKIT_THREADS: expected a whole number at least 1, got {asked!r}")
    torch.set_num_threads(int(asked))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fingerprint(model) -> str:
    """A checksum of all weights, to tell whether two runs ended in the very same net."""
    digest = hashlib.sha256()
    for weight in model.parameters():
        digest.update(weight.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
