"""The prescriptions, by what they change. `catalogue.py` has them all, and those for a diagnosis."""
