"""What Slurm does, and what our client makes of it, checked on the mocked Slurm and on a real one."""

import pytest

# The checks are no test modules: without this a failed one would not say what it compared.
_CHECKS = (
    "checks_environment",
    "checks_jobs",
    "checks_refusals",
    "client_checks",
    "controller_checks",
    "reap_checks",
)
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _CHECKS))
