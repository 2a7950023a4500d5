"""Serving: launchers, readiness, supervision, the server pool."""
