"""The rank worker: a second pytest that owns CUDA, the process group, fixtures and test bodies. It may hang."""
