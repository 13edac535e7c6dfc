"""What stands in for flash-attn where it is not installed: on a CPU, and on a GPU without a CUDA toolkit."""
