"""What the engine uses of ``nccl.core``: groups of sends and receives that do not block, over MPI or torch.distributed's gloo.

Device memory is the host's (``tests/runtime/stub``). A group is in progress until every message of it has come and gone.
"""

import ctypes
import sys
from types import SimpleNamespace

SUCCESS, IN_PROGRESS = 0, 7


def get_version():
    return SimpleNamespace(libnccl="stand-in", nccl4py="stand-in")


def get_unique_id():
    return b"token"


class UniqueId:
    @staticmethod
    def from_bytes(token):
        assert token == b"token"
        return token


class NCCLConfig:
    def __init__(self, blocking):
        assert blocking is False


def _memory(array):
    return (ctypes.c_uint8 * array.shape[0]).from_address(array.pointer)


class _Mpi:
    """Messages of mpi4py on a communicator of their own."""

    def __init__(self, size):
        from mpi4py import MPI
        self.comm = MPI.COMM_WORLD.Dup()
        assert self.comm.size == size

    def begin(self, kind, array, rank):
        return (self.comm.Irecv if kind == "recv" else self.comm.Isend)(_memory(array), rank).Test


class _Gloo:
    """Messages of torch.distributed."""

    def __init__(self, size):
        import torch
        self.torch = torch
        assert torch.distributed.get_world_size() == size

    def begin(self, kind, array, rank):
        memory = self.torch.frombuffer(_memory(array), dtype=self.torch.uint8)
        work = getattr(self.torch.distributed, f"i{kind}")(memory, rank)
        return lambda keep=memory: work.is_completed() or bool(work.wait())


_asked, _under_way = [], []


def group_start():
    assert not _asked


def group_end():
    _under_way.extend(begin() for begin in _asked)
    _asked.clear()


class Communicator:
    @classmethod
    def init(cls, size, rank, token, config):
        self = cls()
        self.messages = (_Gloo if "torch" in sys.modules else _Mpi)(size)
        return self

    def recv(self, array, rank, stream):
        _asked.append(lambda: self.messages.begin("recv", array, rank))

    def send(self, array, rank, stream):
        _asked.append(lambda: self.messages.begin("send", array, rank))

    def get_async_error(self):
        _under_way[:] = [test for test in _under_way if not test()]
        return IN_PROGRESS if _under_way else SUCCESS

    def get_last_error(self):
        return ""

    def destroy(self):
        assert self.get_async_error() == SUCCESS

    def abort(self):
        _under_way.clear()
