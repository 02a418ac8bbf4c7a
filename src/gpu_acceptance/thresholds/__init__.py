"""From YAML files to the Profile of Limits that a run is judged by, and every way such a file can be wrong."""
