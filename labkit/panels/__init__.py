"""Panels for notebooks and Voila: ipywidgets around the same runs, plots and diagnoses as everywhere else."""
