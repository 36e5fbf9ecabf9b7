"""A failure mode as one standalone PyTorch script."""
