"""The benchmark client: command, result reading, validation."""
