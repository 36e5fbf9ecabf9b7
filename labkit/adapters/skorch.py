"""A callback for skorch: `NeuralNetClassifier(..., callbacks=[LabkitCallback()])`."""

from collections.abc import Callable
from typing import Any

from labkit.diagnosis.watch import Watch, watch
from labkit.errors import optional

callbacks = optional("skorch.callbacks", extra="adapters", feature="labkit.adapters.skorch")
dataset = optional("skorch.dataset", extra="adapters", feature="labkit.adapters.skorch")


class LabkitCallback(callbacks.Callback):  # type: ignore[name-defined]  # the base is imported at run time
    """Watches the module and optimizer of a skorch net; afterwards `record` has the run and the diagnosis.

    For `labkit.treat`: `LabkitCallback(watch=watch)` in a program that builds the net.
    """

    def __init__(self, watch: Callable[..., Watch] = watch, **options: Any) -> None:
        self.watch, self.options = watch, options
        self.record: Watch | None = None

    def on_train_begin(self, net, X=None, y=None, **_) -> None:
        self.record = self.watch(net.module_, net.optimizer_, **self.options)
        self.record.__enter__()

    def on_batch_end(self, net, batch=None, training=False, loss=None, **_) -> None:
        if training and self.record is not None:
            self.record.step(loss, batch=dataset.unpack_data(batch))

    def on_epoch_end(self, net, **_) -> None:
        last = net.history[-1]
        found = {"loss": last.get("valid_loss"), "accuracy": last.get("valid_acc")}
        found = {name: value for name, value in found.items() if value is not None}
        if self.record is not None and found:
            self.record.validation(**found)

    def on_train_end(self, net, **_) -> None:
        if self.record is not None:
            self.record.__exit__(None, None, None)
