"""The commands, grouped by purpose: `add_NAME` declares the arguments, the function below it does the work."""
