"""The files of a run: results, journals, manifest, signature, and a run rebuilt from its journals."""
