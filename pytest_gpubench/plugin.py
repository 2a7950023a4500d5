"""The pytest hooks of the plugin (placeholder wiring)."""
