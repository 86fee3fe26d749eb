"""Kernels of our own (Triton, CUDA only), where a measured profile says that the compiler leaves the most.

Each has an eager twin elsewhere in the trainer, which the CPU runs and which the tests hold it against. A module here
is imported only when tensors are on a GPU: Triton is no dependency of a CPU installation.
"""
