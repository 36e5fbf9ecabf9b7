"""Programs that are not recipes of the lab: plain PyTorch loops, fault operators, and how the diagnosis does on them."""
