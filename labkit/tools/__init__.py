"""Tools for any PyTorch model: LR finder, gradient flow, dead units, clipping, sharpness."""
