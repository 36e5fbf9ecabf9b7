"""What a practitioner takes away: each tool works on any PyTorch model."""
