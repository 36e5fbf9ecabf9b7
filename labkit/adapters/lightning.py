"""A callback for Lightning: `Trainer(callbacks=[LabkitCallback()])`."""

from collections.abc import Callable
from typing import Any

import torch

from labkit.diagnosis.watch import Watch, watch
from labkit.errors import optional

lightning = optional("lightning.pytorch", extra="adapters", feature="labkit.adapters.lightning")

LOSSES, ACCURACIES = ("val_loss", "valid_loss"), ("val_acc", "val_accuracy", "valid_acc")


class LabkitCallback(lightning.Callback):  # type: ignore[name-defined]  # the base is imported at run time
    """Watches the first optimizer of a LightningModule; afterwards `record` has the run and the diagnosis.

    Options go to `labkit.watch`. Validation results are those logged as val_loss and val_acc. For `labkit.treat`, a
    program that builds module and trainer gives the `watch` that it receives: `LabkitCallback(watch=watch)`.
    """

    def __init__(self, watch: Callable[..., Watch] = watch, **options: Any) -> None:
        self.watch, self.options = watch, options
        self.record: Watch | None = None

    def on_train_start(self, trainer, module) -> None:
        self.record = self.watch(module, trainer.optimizers[0], **self.options)
        self.record.__enter__()

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        if self.record is not None and loss is not None:
            self.record.step(loss, batch=batch if pair_of_tensors(batch) else None)

    def on_validation_epoch_end(self, trainer, module) -> None:
        if self.record is None or trainer.sanity_checking:
            return
        logged = trainer.callback_metrics
        results = {"loss": first(logged, LOSSES), "accuracy": first(logged, ACCURACIES)}
        results = {name: value for name, value in results.items() if value is not None}
        if results:
            self.record.validation(**results)

    def on_train_end(self, trainer, module) -> None:
        if self.record is not None:
            self.record.__exit__(None, None, None)

    def on_exception(self, trainer, module, exception) -> None:
        if self.record is not None:
            self.record.__exit__(type(exception), exception, exception.__traceback__)


def pair_of_tensors(batch) -> bool:
    return isinstance(batch, list | tuple) and len(batch) == 2 and all(map(torch.is_tensor, batch))


def first(values, names):
    return next((values[name] for name in names if name in values), None)
