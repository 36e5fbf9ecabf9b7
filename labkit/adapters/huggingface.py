"""A callback for Hugging Face's Trainer: `Trainer(..., callbacks=[LabkitCallback()])`."""

from collections.abc import Callable
from typing import Any

from labkit.diagnosis.watch import Watch, watch
from labkit.errors import optional

transformers = optional("transformers", extra="adapters", feature="labkit.adapters.huggingface")


class LabkitCallback(transformers.TrainerCallback):  # type: ignore[name-defined]  # the base is imported at run time
    """Watches the Trainer's model; afterwards `record` has the run and the diagnosis. Options go to `labkit.watch`.

    The loss of a step is the one in the model's output; with gradient accumulation, that of the last batch.
    For `labkit.treat`: `LabkitCallback(watch=watch)` in a program that builds model and Trainer.
    """

    def __init__(self, watch: Callable[..., Watch] = watch, **options: Any) -> None:
        self.watch, self.options = watch, options
        self.record: Watch | None = None
        self.loss = None
        self.hook: Any = None

    def on_train_begin(self, args, state, control, *, model=None, optimizer=None, **_) -> None:
        optimizer = getattr(optimizer, "optimizer", optimizer)  # inside accelerate's wrapper
        self.hook = model.register_forward_hook(self._note_loss)
        self.record = self.watch(model, optimizer, **self.options)
        self.record.__enter__()

    def _note_loss(self, model, inputs, output) -> None:
        loss = getattr(output, "loss", None)
        if model.training and loss is not None:
            self.loss = loss.detach()

    def on_step_end(self, args, state, control, **_) -> None:
        if self.record is not None and self.loss is not None:
            self.record.step(self.loss)

    def on_evaluate(self, args, state, control, *, metrics=None, **_) -> None:
        logged = {name: (metrics or {}).get(f"eval_{name}") for name in ("loss", "accuracy")}
        found = {name: value for name, value in logged.items() if value is not None}
        if self.record is not None and found:
            self.record.validation(**found)

    def on_train_end(self, args, state, control, **_) -> None:
        if self.record is not None:
            self.hook.remove()
            self.record.__exit__(None, None, None)
