"""The shape of the loss itself: flat ground, saddles and narrow valleys."""
