"""Weights with a bad init, and weights that blow up or collapse to 0."""
