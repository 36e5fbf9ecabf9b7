"""Gradients that vanish or explode on their way back."""
