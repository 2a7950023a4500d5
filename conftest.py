"""Root conftest: the project's own tests use pytester; everything else lives in the plugin."""

pytest_plugins = ["pytester"]
