"""Callbacks that put `labkit.watch` around the loops of other libraries. Each module needs its library."""

from labkit.training import torchvision_shim as vision

vision.torchvision()  # these libraries import it; where its wheel does not fit torch's, ours mends that
