"""A stand-in for nccl4py on a machine without GPUs."""
