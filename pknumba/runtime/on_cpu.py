"""What a rank has on the interpreter: a session that runs its kernels, and memory made of NumPy arrays."""

import ctypes
import os
import sys

from .memory import HeapMemory, HostMemory
from ..errors import ConfigError

__all__ = ["Cpu", "Sessions", "PartSessions", "NUM_SMS"]

#: Multiprocessors of an interpreted device, unless the option num_sms says otherwise.
NUM_SMS = 4


def usual_sms():
    """PKNUMBA_NUM_SMS, or NUM_SMS: with those of a GPU an interpreted call chooses the configurations that it would choose there."""
    text = os.environ.get("PKNUMBA_NUM_SMS") or str(NUM_SMS)
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"PKNUMBA_NUM_SMS: {text!r}. It is a number of multiprocessors, at least 1. Give one, or unset it.")
    return int(text)


class Sessions:
    """Makes the interpreter session of a process when it is first needed.

    Args:
        options: of ``interpreter.Session``.
    """

    def __init__(self, options):
        self.options, self.session = options, None

    def get(self):
        """The session."""
        if self.session is None:
            from .. import interpreter
            self.session = interpreter.Session(**self.options)
        return self.session

    def block(self, condition, why):
        """How host tasks wait: the session runs something else, and knows a deadlock when it sees one.

        It is told also where there is nothing to wait for, because the meeting orders the ranks' launches.
        """
        self.get().block_host(condition, why)

    def run(self, mains):
        """Run the functions, one for each rank, as host tasks to their end; their results. Raises the first error."""
        results, session = [None] * len(mains), self.get()

        def task(rank, main):
            def body():
                results[rank] = main()
            return body

        for rank, main in enumerate(mains):
            session.spawn_host(rank, task(rank, main))
        session.run()
        return results


class PartSessions:
    """The sessions of a sub-world: its launches are those of the ranks of the whole.

    Args:
        whole: Sessions of the world that it is part of.
        ranks: the members' ranks there.
    """

    def __init__(self, whole, ranks):
        self.whole, self.ranks, self.session = whole, ranks, None

    def get(self):
        """The session, as the part sees it."""
        if self.session is None:
            self.session = _PartSession(self.whole.get(), self.ranks)
        return self.session


class _PartSession:
    def __init__(self, session, ranks):
        self._session, self._ranks = session, ranks

    def launch(self, rank, name, grid, resident=None, cluster=1):
        return self._session.launch(self._ranks[rank], name, grid, resident, cluster)

    def rank_of(self, rank):
        return self._session.rank_of(self._ranks[rank])

    def __getattr__(self, name):
        return getattr(self._session, name)


class Cpu:
    """One rank's side of a world on the interpreter.

    Args:
        link: LocalLink or MpiLink.
        sessions: the process's Sessions.
        num_sms: how many blocks are resident at once.
        heap: interpreter.mpi's shared heap, where ranks are processes.
        sharing: whether the session's ranks share a card (``card_sms``).
    """

    device, stream = None, 0
    limit_s = 0
    error_record = abort_word = abort_table = 0
    word = ctypes.c_uint32(0)

    def __init__(self, link, sessions, num_sms=None, heap=None, sharing=False):
        self.sharing = self.crowded = sharing
        self.link, self.sessions, self.num_sms = link, sessions, usual_sms() if num_sms is None else num_sms
        self.heap, self.memory = heap, HostMemory(link) if heap is None else HeapMemory(link, heap)

    def make_current(self):
        """Nothing: there is no device."""

    def stream_of(self, stream, arrays):
        """0: the interpreter has no streams."""
        return 0

    def synchronize(self, stream):
        """Nothing: a call of an operator ends with its kernel."""

    def record(self):
        """None: the interpreter raises its errors itself."""

    def abort(self, by=None, ranks=None):
        """Nothing: roles end with their session."""

    def context(self, limit_s, names):
        """None: interpreted kernels need no context block."""

    def asarray(self, x):
        """`x` as a NumPy array; from CuPy, torch or DeviceArray it is copied."""
        import numpy
        if hasattr(x, "get") and not isinstance(x, numpy.ndarray):
            return x.get()
        if type(x).__module__.partition(".")[0] == "torch":
            x = x.detach().cpu()
            if str(x.dtype) == "torch.bfloat16":  # NumPy has no name for it, ml_dtypes has
                return x.view(sys.modules["torch"].uint16).numpy().view(_bfloat16())
            return x.numpy()
        return numpy.asarray(x)

    def allocations(self):
        """Nothing of its own."""
        return []

    def close(self):
        """Nothing is held, beyond what the link's heap frees."""


def _bfloat16():
    from .dtypes import numpy_dtype
    return numpy_dtype("bfloat16")
