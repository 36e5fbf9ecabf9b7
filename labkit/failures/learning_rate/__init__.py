"""The learning rate, its schedule and the batch size: too high, too low, too short."""
