"""Panels for notebooks and Voila: ipywidgets around the same runs, drawings and diagnoses as everywhere else."""
