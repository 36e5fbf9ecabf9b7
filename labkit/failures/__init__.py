"""The catalogue of failure modes: one file per mode, in the folder of its topic."""
