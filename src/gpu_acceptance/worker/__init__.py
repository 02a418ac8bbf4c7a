"""The rank worker: a second pytest that owns CUDA, the process group, the fixtures and the test bodies. It may hang."""
