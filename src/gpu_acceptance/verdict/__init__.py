"""Facts to rows and one verdict; the comparison of two runs. Pure: no torch, no pytest, no files."""
