"""The one-page poster, drawn from real runs."""
