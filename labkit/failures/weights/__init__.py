"""Weights that start wrong, run away or fade."""
