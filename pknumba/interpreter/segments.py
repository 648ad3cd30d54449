"""Memory that the processes of a node share: a file that has lost its name before anything is kept in it.

Nobody else can open it (mode 0600, a random name for as long as it has one), nothing is left behind when a process is killed, and it
is given back when the last array on it is dropped.
"""

import mmap
import os
import secrets
import tempfile

import numpy as np

from ..errors import WorldError

__all__ = ["FOLDER", "share"]

#: Where it lies: in memory, else wherever temporary files do.
FOLDER = "/dev/shm"


def share(comm, nbytes):
    """uint8 arrays of `nbytes` zeros, one of each rank of `comm`, in rank order. Collective.

    Raises WorldError, on every rank, where there is no room.
    """
    path, problem = _make(nbytes * comm.size) if comm.rank == 0 else (None, None)
    path, problem = comm.bcast((path, problem))
    memory = None
    if problem is None:
        try:
            memory = _map(path, nbytes * comm.size)
        except OSError as why:
            problem = _said(why, nbytes * comm.size, path)
    problems = comm.allgather(problem)
    if comm.rank == 0 and path is not None:
        os.unlink(path)
    found = next((text for text in problems if text), None)
    if found:
        raise WorldError(found, bytes=nbytes * comm.size)
    return [np.frombuffer(memory, np.uint8, nbytes, r * nbytes) for r in range(comm.size)]


def _make(nbytes):
    """(path, None) of a new file with that many bytes behind it, or (None, what is wrong)."""
    folder = FOLDER if os.access(FOLDER, os.W_OK | os.X_OK) else tempfile.gettempdir()
    path = os.path.join(folder, f"pknumba-{secrets.token_hex(16)}")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as why:
        return None, _said(why, nbytes, folder)
    try:
        os.posix_fallocate(descriptor, 0, nbytes)       # a hole would be found out by a bus error, later
        return path, None
    except OSError as why:
        os.unlink(path)
        return None, _said(why, nbytes, folder)
    finally:
        os.close(descriptor)


def _map(path, nbytes):
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, nbytes)
    finally:
        os.close(descriptor)


def _said(why, nbytes, place):
    return (f"World: {nbytes} bytes of shared memory: {why.strerror or why} ({place}). Ranks that are processes share their arrays and "
            "counters in memory of the node. Free some (df -h /dev/shm; containers: --shm-size), or use smaller arrays.")
