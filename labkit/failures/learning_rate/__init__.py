"""The learning rate: too high, too low."""
