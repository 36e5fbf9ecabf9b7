"""The folklore audit: what practitioners say about training, tried on real runs; see `labkit folklore`."""
