"""Training steps of models people know: throughput, and whether training on many GPUs is right."""
