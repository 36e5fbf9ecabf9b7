"""Failures of language models: what a token sees, what it is asked for, and how samples are written."""
