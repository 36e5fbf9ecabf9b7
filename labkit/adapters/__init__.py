"""Callbacks that put `labkit.watch` around the loops of other libraries. Each module needs its library."""

from labkit.training import torchvision_shim

# These libraries import torchvision; if its wheel does not match torch's, our shim makes it importable.
torchvision_shim.torchvision()
