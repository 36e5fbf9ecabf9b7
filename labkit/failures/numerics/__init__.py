"""Overflow, underflow, rounding and NaN."""
