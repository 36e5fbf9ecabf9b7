"""A Run becomes axes, a page, HTML. Imports no torch."""
