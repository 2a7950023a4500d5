"""Slurm: client protocol, command line client, states, journal."""
