"""The fault operators, by where the fault is."""
