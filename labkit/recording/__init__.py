"""What is measured while a net trains, and the Run it becomes. Knows no recipe."""
