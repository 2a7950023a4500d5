"""A mocked Slurm and a simulated vLLM, for tests of the plugin and of recipes."""
