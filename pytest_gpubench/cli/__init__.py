"""The gpubench command."""
