"""Numbers that overflow, underflow or stop being numbers."""
