"""Units that die or saturate."""
