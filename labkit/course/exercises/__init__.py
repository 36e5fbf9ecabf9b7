"""The exercises of each lesson: `lesson_NN.py` closes with `exercises`."""
