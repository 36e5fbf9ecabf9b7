"""Gradients that vanish, explode or are clipped too tightly."""
