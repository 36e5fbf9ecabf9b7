"""The web edition: a static site generated from the catalogue, the lessons, recorded runs and the docstrings."""
