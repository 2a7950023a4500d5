"""End-to-end tests: a real Slurm, a real multi-node vLLM on CPU, no mock."""
