"""Nets that learn the training set and not the task."""
