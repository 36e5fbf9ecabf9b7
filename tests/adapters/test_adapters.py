"""The callbacks, inside the real libraries; each is skipped, with a reason, where its library is not installed."""

import logging
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import labkit.adapters  # noqa: F401 (first: it makes torchvision importable, which the libraries need)
from labkit.training.data import load

X, Y = (part[:256] for part in load("mnist", "train"))
pytestmark = pytest.mark.filterwarnings("ignore")


def body(width: int = 16) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    return nn.Sequential(nn.Flatten(), *layers)


def assert_watched(record, steps: int, validations: int) -> None:
    run = record.run
    assert len(run) == steps and np.isfinite(run["loss"]).all()
    assert (run["grad_norm_total"] > 0).all() and (run["update_norm"].sum(axis=1) > 0).all()
    assert len(run["val_step"]) == validations and "verdict" in record.report()


# --- Lightning ------------------------------------------------------------------------------------


def lightning_trainer(callback, folder, lr: float = 0.1):
    lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = body()

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, _):
            x, y = batch
            return cross_entropy(self(x), y)

        def validation_step(self, batch, _):
            x, y = batch
            outputs = self(x)
            self.log("val_loss", cross_entropy(outputs, y))
            self.log("val_acc", (outputs.argmax(1) == y).float().mean())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=lr)

    trainer = lightning.Trainer(
        max_epochs=2, callbacks=[callback], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu", default_root_dir=folder,
    )  # fmt: skip
    loader = DataLoader(TensorDataset(X, Y), 32)
    trainer.fit(Module(), loader, loader)


def test_lightning_is_watched(tmp_path):
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from labkit.adapters.lightning import LabkitCallback

    callback = LabkitCallback(probe=(X[:64], Y[:64]))
    lightning_trainer(callback, tmp_path)
    assert_watched(callback.record, steps=16, validations=2)
    assert "label_entropy" in callback.record.run and callback.record.run.accuracy > 0.1


def test_lightning_that_diverges_is_named(tmp_path):
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from labkit.adapters.lightning import LabkitCallback

    callback = LabkitCallback()
    lightning_trainer(callback, tmp_path, lr=10.0)
    assert "learning_rate_too_high" in [found.name for found in callback.record.diagnose()]


def test_lightning_is_treated(tmp_path):
    """A program that builds module and trainer hands the `watch` it receives to the callback."""
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
    from labkit.adapters.lightning import LabkitCallback
    from labkit.diagnosis.treatment.arms import DONE, Arm, Here, Order

    def program(watch, seed):
        torch.manual_seed(seed)
        lightning_trainer(LabkitCallback(watch=watch), tmp_path, lr=10.0)

    untreated, treated = (Here(program)(Order(Arm(names), steps=16)) for names in ((), ("rate_times_0.01",)))
    assert untreated.status == treated.status == DONE and treated.measures == ("loss", "accuracy")
    assert untreated.run["lr"].max() == 10.0 and treated.run["lr"].max() == pytest.approx(0.1)
    assert treated.run["loss"][-1] < untreated.run["loss"][-1]


# --- Hugging Face ---------------------------------------------------------------------------------


def test_hugging_face_is_watched(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from labkit.adapters.huggingface import LabkitCallback

    # From the root of the repository, our folder of data looks to transformers like the package `datasets`.
    monkeypatch.setattr("transformers.trainer.is_datasets_available", lambda: False)
    settings = transformers.ViTConfig(
        image_size=28, patch_size=7, num_channels=1, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, num_labels=10,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(settings)
    rows = [{"pixel_values": x, "labels": y} for x, y in zip(X[:128], Y[:128], strict=True)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=32, num_train_epochs=2, report_to="none",
        save_strategy="no", eval_strategy="epoch", use_cpu=True, disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    callback = LabkitCallback()
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:32], callbacks=[callback])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    assert_watched(callback.record, steps=8, validations=2)
    assert not model._forward_hooks


# --- skorch ---------------------------------------------------------------------------------------


def test_skorch_is_watched():
    skorch = pytest.importorskip("skorch", reason="skorch is not installed")
    from labkit.adapters.skorch import LabkitCallback

    callback = LabkitCallback(probe=(X[:64], Y[:64]))
    net = skorch.NeuralNetClassifier(
        body, criterion=nn.CrossEntropyLoss, lr=0.1, batch_size=32, max_epochs=2, verbose=0, callbacks=[callback]
    )
    net.fit(X.numpy(), Y.numpy())
    assert_watched(callback.record, steps=len(callback.record.run), validations=2)
    assert len(callback.record.run) >= 12
