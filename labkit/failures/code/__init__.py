"""Bugs in the code of the training loop."""
