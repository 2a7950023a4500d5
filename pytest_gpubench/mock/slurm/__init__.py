"""The Slurm commands of the mock."""
