"""YAML files to a profile of limits and parameters; every way in which such a file can be wrong."""
