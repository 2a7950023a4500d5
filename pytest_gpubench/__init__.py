"""LLM-serving GPU benchmarks as pytest cases."""

__all__ = ["__version__"]

__version__ = "0.1.0"
