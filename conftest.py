"""Names the plugin and the fixtures of the acceptance run; nothing else."""

pytest_plugins = ["gpu_acceptance.plugin", "fixtures.ranks", "fixtures.limits"]
