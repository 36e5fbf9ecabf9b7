"""What goes wrong only when several processes train together."""
