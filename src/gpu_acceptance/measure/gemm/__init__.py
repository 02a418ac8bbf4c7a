"""Matrix multiplication: TFLOP/s sustained, in bursts and at the best shape, each with its error and its wrong elements.

Random data, because constant data draws less power and reads 15 % too fast; the same seed on every GPU, so that equal
GPUs do equal work. Tensor suffixes: M, N, K; R sampled rows, C columns of a chunk. One TFLOP/s = 1e12 floating-point
operations per second. The three rates are three figures: none of them is comparable with another.
"""
