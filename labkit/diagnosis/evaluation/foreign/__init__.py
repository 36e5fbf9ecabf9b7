"""Plain PyTorch programs that are not recipes of the lab, fault operators, and how the diagnosis does on them."""
