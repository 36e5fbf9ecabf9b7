"""The Recipe, its parts, data, models, and the loop that trains it."""
