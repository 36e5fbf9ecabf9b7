"""The claims, by topic."""
