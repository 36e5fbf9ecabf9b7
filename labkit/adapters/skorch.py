"""A callback for skorch: `NeuralNetClassifier(..., callbacks=[LabkitCallback()])`."""

from skorch.callbacks import Callback
from skorch.dataset import unpack_data

from labkit.diagnosis.watch import Watch, watch


class LabkitCallback(Callback):
    """Watches the net's module and optimizer; afterwards `record` has the run and the diagnosis."""

    def __init__(self, **options):
        self.options = options
        self.record: Watch | None = None

    def on_train_begin(self, net, X=None, y=None, **_) -> None:
        self.record = watch(net.module_, net.optimizer_, **self.options)
        self.record.__enter__()

    def on_batch_end(self, net, batch=None, training=False, loss=None, **_) -> None:
        if training:
            self.record.step(loss, batch=unpack_data(batch))

    def on_epoch_end(self, net, **_) -> None:
        last = net.history[-1]
        found = {"loss": last.get("valid_loss"), "accuracy": last.get("valid_acc")}
        found = {name: value for name, value in found.items() if value is not None}
        if found:
            self.record.validation(**found)

    def on_train_end(self, net, **_) -> None:
        self.record.__exit__(None, None, None)
