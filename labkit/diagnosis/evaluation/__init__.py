"""How far the verdict can be trusted: the contract of every mode, and the blind evaluation on held-out runs."""
