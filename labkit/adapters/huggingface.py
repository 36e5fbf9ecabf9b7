"""A callback for Hugging Face's Trainer: `Trainer(..., callbacks=[LabkitCallback()])`."""

from transformers import TrainerCallback

from labkit.diagnosis.watch import Watch, watch


class LabkitCallback(TrainerCallback):
    """Watches the Trainer's model; afterwards `record` has the run and the diagnosis. Options go to `labkit.watch`.

    The loss of a step is the one in the model's own output: that of the last batch, where gradients are accumulated.
    """

    def __init__(self, **options):
        self.options = options
        self.record: Watch | None = None
        self.loss = None
        self.hook = None

    def on_train_begin(self, args, state, control, *, model=None, optimizer=None, **_) -> None:
        optimizer = getattr(optimizer, "optimizer", optimizer)  # inside accelerate's wrapper
        self.hook = model.register_forward_hook(self._note_loss)
        self.record = watch(model, optimizer, **self.options)
        self.record.__enter__()

    def _note_loss(self, model, inputs, output) -> None:
        loss = getattr(output, "loss", None)
        if model.training and loss is not None:
            self.loss = loss.detach()

    def on_step_end(self, args, state, control, **_) -> None:
        if self.loss is not None:
            self.record.step(self.loss)

    def on_evaluate(self, args, state, control, *, metrics=None, **_) -> None:
        found = {name: (metrics or {}).get(f"eval_{name}") for name in ("loss", "accuracy")}
        found = {name: value for name, value in found.items() if value is not None}
        if self.record is not None and found:
            self.record.validation(**found)

    def on_train_end(self, args, state, control, **_) -> None:
        self.hook.remove()
        self.record.__exit__(None, None, None)
