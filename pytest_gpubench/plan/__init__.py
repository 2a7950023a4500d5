"""Plans: a deployment to scripts and command lines, pure."""
