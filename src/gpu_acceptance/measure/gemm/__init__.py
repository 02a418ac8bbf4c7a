"""Matrix multiplication: TFLOP/s sustained, in bursts and at the best shape, each with its error and its wrong elements.

Data are random, because constant data draw less power and read 15 % too fast. The seed is the same on every GPU, so that equal GPUs do
equal work. Tensor suffixes: M, N, K; R sampled rows, C columns of a chunk. One TFLOP/s = 1e12 floating-point operations per second.
"""
