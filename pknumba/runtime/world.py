"""The ranks that work together: who they are, how they meet, the memory they share.

``World.mpi()`` under mpirun has one rank in each process; ``World.local(n)`` has n ranks in this process. Each on GPUs
("gpu") or on the CPU interpreter ("interpreter"), with the same API::

    def main(world):
        c = world.symmetric((1024, 1024), "bfloat16")
        ...

    World.local(4, executor="interpreter").run(main)
"""

import weakref

from . import agree as agreement
from . import dtypes
from .ending import abandon, dropped, end_job
from .hang import ALARM
from .on_cpu import Cpu, PartSessions
from .one_node import OneNode
from .peers import follows
from .symmetric import SymmetricArray, SymmetricCounters
from ..errors import HangError, ShapeError, WorldError

__all__ = ["World"]


class World(OneNode):
    """One rank's view of its world. Made by :meth:`mpi` and :meth:`local`.

    Attributes:
        rank, size: who this is, of how many.
        executor: "gpu" or "interpreter".
        device, card: number and name of this rank's GPU; None on the interpreter.
        num_sms: multiprocessors that a kernel of this rank may use.
        stream: pointer of this rank's own stream; 0 where it needs none.
        sharing: whether ranks share this one's GPU: a kernel that waits for a peer must then not let the next one start early, in the
            multiprocessors that the peer needs. crowded: whether, besides, nothing but num_sms parts it among them.
        error_record, abort_word, abort_table: device addresses of this rank's error record and abort word, and of the table of
            all ranks' abort words (``hang``); 0 on the interpreter.
        hang_names: how :meth:`check` names what a record says (``hang.describe``). closed: whether close() was called.
        alarm: its ``value`` is not 0 where :meth:`check` has something to look at.
        intervals: what this rank's kernels record (``intervals``), where PKNUMBA_TIMELINE=1; else None.
    """

    def __init__(self, link, here, executor, parent=None):
        self._link, self._here, self.executor, self._parent = link, here, executor, parent
        self.rank, self.size, self.closed = link.rank, link.size, False
        self.device, self.num_sms, self.stream = here.device, here.num_sms, here.stream
        self.sharing, self.crowded = (getattr(here, x) or parent is not None and getattr(parent, x) for x in ("sharing", "crowded"))
        self.error_record, self.abort_word, self.abort_table = here.error_record, here.abort_word, here.abort_table
        self.hang_names, self.intervals, self.card = None, getattr(here, "intervals", None), getattr(here, "card", None)
        self._broken, self._blocks, self._parts, self._made, self.alarm = None, {}, [], 0, here.word
        self.cache = {}  # what operators keep for this world: prepared calls, counters, symmetric results
        weakref.finalize(self, dropped, here, self._blocks).atexit = False

    # ---- making one
    @classmethod
    def mpi(cls, comm=None, *, executor="auto", **options):
        """The world of an MPI communicator, one rank in each process. Collective.

        Args:
            comm: mpi4py communicator, possibly of several nodes; None: COMM_WORLD.
            executor: "gpu", "interpreter" or "auto" (gpu where every rank has one; PKNUMBA_EXECUTOR overrides).
            **options: num_sms; device (number; default: local rank modulo visible devices); wait_limit_s (of the device, default
                PKNUMBA_WAIT_LIMIT_S or 60, 0: none); host_limit_s (between hosts, default PKNUMBA_HOST_LIMIT_S or 600);
                node_size (PKNUMBA_NODE_SIZE), engine (PKNUMBA_ENGINE) between nodes; those of ``interpreter.Session``.

        Raises UnsupportedError without MPI or without a GPU for "gpu"; HangError if a rank does not come.
        """
        from .making import mpi_world
        return mpi_world(cls, comm, executor, options)

    @classmethod
    def torch(cls, group=None, *, executor="auto", **options):
        """The world of a torch.distributed process group (None: all ranks), under torchrun, without MPI; as :meth:`mpi` else, but on the
        interpreter it has one rank. Collective."""
        from .making import torch_world
        return torch_world(cls, group, executor, options)

    @classmethod
    def local(cls, size=1, *, executor="auto", seed=0, **options):
        """A world of `size` ranks in this process, to be used through :meth:`run`; directly too if size is 1.

        On the interpreter ranks are tasks of one session; on GPUs they are threads, each with its own stream, on the visible
        devices in turn (ranks of one device get an equal share of its multiprocessors).

        Args:
            executor, **options: as for :meth:`mpi`.
            seed: of the interpreter's schedule.
        """
        from .making import local_world
        return local_world(cls, size, executor, {"seed": seed, **options})

    def run(self, main, *args):
        """``main(world, *args)`` on every rank of this process; the list of results, one for each.

        In a local world the first error of a rank is raised here, and breaks the world. Under MPI an error that leaves main
        is printed, the other ranks' waits for this one end with an error that names it, and the whole job ends; alone it is raised.
        """
        self._enter()
        if self.size == 1 or not hasattr(self._link, "abort"):
            return [main(self, *args)]
        try:
            return [main(self, *args)]
        except (Exception, KeyboardInterrupt) as error:
            end_job(self, error)
            raise

    # ---- meeting
    def barrier(self):
        """Return once every rank has called it. Raises HangError, naming who is missing. It does not wait for the device."""
        self._exchange(None, "barrier")

    def allgather(self, value):
        """Every rank's `value`, in rank order (pickled under MPI, the object itself in a local world)."""
        return self._exchange(value, "allgather")

    def agree(self, subject, value):
        """Make sure that every rank passes the same.

        Args:
            subject: what it is about, such as "GemmAllReduce"; the same on all ranks.
            value: dict; entries are compared as text.

        Raises, on every rank, for the first entry that differs: ShapeError for a key "shape" (or "x.shape"), DTypeError for a
        dtype, ConfigError for a config, WorldError for any other; HangError, naming the ranks that did not come. Costs a message
        to every rank: callers remember what was agreed.
        """
        error = agreement.first_difference(subject, self._exchange(agreement.lines(value), f"agree on {subject}"))
        if error is not None:
            raise error

    def _exchange(self, value, call):
        self._enter()
        try:
            return self._link.allgather(value, call)
        except (HangError, WorldError) as error:
            if isinstance(error, HangError) or "failed_rank" in error.data:
                self._break(getattr(error, "report", str(error)), error)    # the others would take our next call for this one
            raise

    def split(self, ranks):
        """The world of some of the ranks, in the given order; None for a rank that is not among them.

        Collective among its members; the others need not call it. Closed with this world at the latest.
        """
        self._enter()
        ranks = agreement.members(ranks, self.size)
        if self.rank not in ranks:
            return None
        part, self.alarm = World(*self._split(ranks), self.executor, self), ALARM
        self._parts.append(part)
        return part

    def _split(self, ranks):
        link = self._link.split(ranks)
        if self.executor == "interpreter":
            link.heap = heap = self._link.heap and self._link.heap.part(ranks)
            return link, Cpu(link, PartSessions(self._here.sessions, ranks), self.num_sms, heap)
        from .on_gpu import Gpu
        processes = hasattr(self._link, "abort")
        return link, Gpu(link, processes, 0, self.device, self.num_sms, self._here.limit_s, self.stream)

    # ---- memory
    def symmetric(self, shape, dtype="bfloat16"):
        """A SymmetricArray: an array of this shape and dtype on every rank, each visible to all. Collective.

        Raises ShapeError or DTypeError, on every rank, where ranks disagree; DriverError where one has too little memory.
        """
        self._enter()
        shape = (shape,) if isinstance(shape, int) else tuple(int(n) for n in shape)
        dtype = dtypes.name_of(dtype)
        if not shape or min(shape) < 0:
            raise ShapeError(f"World.symmetric: shape {shape}. It has at least one dimension, and none is negative.")
        dtypes.itemsize(dtype)
        self.agree("World.symmetric", {"shape": shape, "dtype": dtype})
        self._made += 1
        return SymmetricArray(self, shape, dtype, self._made)

    def counters(self, name, n):
        """SymmetricCounters: `n` 32-bit counters on every rank, zero. Collective."""
        self._enter()
        self.agree("World.counters", {"name": name, "n": n})
        return SymmetricCounters(self, name, n)

    def asarray(self, x):
        """`x` on this executor: a CuPy array (DeviceArray without CuPy) on a GPU, a NumPy array on the interpreter."""
        self._enter()
        return self._here.asarray(x)

    def _allocate(self, nbytes, call):
        return self._keep(self._here.memory.allocate(nbytes, call))

    def _allocate_counters(self, n, call):
        return self._keep(self._here.memory.counters(n, call))

    def _keep(self, block):
        self._blocks[id(block)] = block
        return block

    def _release(self, block):
        """Release an allocation with the other ranks; alone if the world is broken or closed already."""
        if self._blocks.pop(id(block), None) is None:
            return
        if self.closed or self._broken:
            block.abandon()
        else:
            block.release()

    # ---- the device
    @property
    def session(self):
        """The interpreter session that runs this rank's kernels; None on a GPU."""
        self._enter()
        return self._here.sessions.get() if self.executor == "interpreter" else None

    def context(self, limit_s=None, names=None):
        """A ContextBlock (see ``hang``) for one operator's workspace; None on the interpreter.

        Args:
            limit_s: how long device code waits; None: the world's limit; 0: for ever.
            names: how a record with this block's number is described (``hang.describe``).
        """
        self._enter()
        return self._here.context(limit_s, names)

    def stream_of(self, stream=None, *arrays):
        """Pointer of the stream to launch on: `stream`; for None this rank's own stream, else that of the arrays' library."""
        return self._here.stream_of(stream, arrays)

    def synchronize(self, stream=None):
        """Wait for `stream` (None: this rank's stream, or the legacy default stream), then :meth:`check`."""
        self._enter()
        self._here.synchronize(self._here.stream_of(stream, ()))
        self.check()

    def check(self):
        """Raise HangError if a wait on this device has outlasted its limit. The world is broken then. Costs 0.2 us."""
        if self._broken or self.closed:
            self._enter()
        record = self._here.record()
        if record is not None:
            error = self._here.hang_error(record, self.hang_names)
            self._break(error.report, error)
            raise error
        for part in self._parts:
            if not part.closed:
                part.check()

    def _break(self, why, error=None):
        """The world cannot be used any more; whoever waits for this rank, on a host or a device, gives up."""
        if not self._broken:
            self._broken, self.alarm = why, ALARM
            lost = self._link.tell(why, follows(error)) if hasattr(self._link, "tell") else ()
            self._here.abort(self.rank, [r for r in range(self.size) if r != self.rank and r not in lost])

    def _enter(self):
        """Raise WorldError unless the world can be used."""
        if self.closed:
            raise WorldError("World: closed. Its memory and streams are gone. Make a new one.")
        if self._broken:
            raise WorldError(f"World: broken ({self._broken}). Its counters are in an unknown state. Make a new one.")

    # ---- the end
    def close(self):
        """Give back everything: parts, arrays, streams (collective); again, nothing. A broken world gives back what it can alone."""
        if self.closed:
            return
        for part in self._parts[::-1]:
            part.close() if not self._broken else part._give_up()
        if self._broken:
            self._give_up()
            return
        for block in list(self._blocks.values())[::-1]:
            self._release(block)
        for block in self._here.allocations():
            block.release()
        self._give_up()

    def _give_up(self, alone=False):
        """Give back what needs no other rank (`alone`: no other rank lives any more); the world is closed then."""
        self.closed, self.alarm = True, ALARM
        self.cache.clear()
        abandon(self._here, self._blocks, alone)
        if not self._broken:
            self._link.close()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        # After an error on this rank the others may never come to a collective close.
        if kind is not None and not self._broken and self.size > 1:
            self._break(f"rank {self.rank} left it with {kind.__name__}: {error}", error)
        self.close()

    def __repr__(self):
        where = "interpreter" if self.executor == "interpreter" else f"gpu {self.device}"
        return f"World(rank {self.rank} of {self.size}, {where}{', closed' if self.closed else ''})"
