"""The simulated ``vllm`` command."""
