"""Recipes: YAML to frozen points."""
