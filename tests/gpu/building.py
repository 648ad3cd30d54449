"""Kernels that a file of tests needs, compiled at once on all cores: the device is not held while one after the other is compiled."""

import os
from multiprocessing import get_context

from pknumba.errors import PknumbaError
from pknumba.templates.call import compiled

__all__ = ["build"]


def build(jobs):
    """Compile (kernel, configuration) pairs to the cache on disk. What does not compile fails in the test that calls it."""
    with get_context("fork").Pool(min(len(jobs), os.cpu_count() or 1)) as pool:
        pool.map(_one, jobs, 1)


def _one(job):
    try:
        compiled(*job)
    except PknumbaError:
        pass
