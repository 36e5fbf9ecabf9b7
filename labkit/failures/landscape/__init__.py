"""The shape of the loss itself: plateaus, saddle points and narrow valleys."""
