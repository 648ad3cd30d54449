"""CUDA reads its environment once, when it starts: ranks as threads need theirs before torch or any test touches a GPU."""

import os

# Kernels that wait for each other must not meet in one hardware queue, and no rank may load code while another's kernel waits.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
