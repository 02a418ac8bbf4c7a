"""What the command line asked for and the files that it names, looked at before any GPU is touched."""
