"""gpu-acceptance: the test a buyer runs before signing for a GPU cluster."""

__version__ = "0.2.0"
