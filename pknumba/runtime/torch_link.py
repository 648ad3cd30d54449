"""Ranks as the processes of a torch.distributed group (torchrun): how they meet, without MPI.

Values travel through a gloo group of our own, made for the members of the caller's group: neither NCCL nor the caller's
collectives are involved, and no GPU is needed to meet.
"""

import datetime
import os
import sys
import traceback

from .agree import ranks_text, same_call
from ..errors import HangError, UnsupportedError, WorldError

__all__ = ["TorchLink", "open_link", "node_rank"]


def _distributed():
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        raise UnsupportedError("World.torch: torch.distributed has no process group. A world of torch ranks is made of one. Call "
                               "torch.distributed.init_process_group first, under torchrun.")
    return torch.distributed


def open_link(group, limit_s):
    """A TorchLink over the members of `group` (None: all ranks). Collective."""
    distributed = _distributed()
    members = distributed.get_process_group_ranks(group or distributed.group.WORLD)
    link = TorchLink(distributed, members, limit_s)
    hosts = link.allgather(_node_name(), "World.torch")
    link.sharing = tuple(rank for rank, host in enumerate(hosts) if host == hosts[link.rank])
    return link


def _node_name():
    """What tells this node from others; containers of one node may have names of their own."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as f:
            return f.read().strip()
    except OSError:
        import socket
        return socket.gethostname()


def node_rank(link):
    """The number of this process among those of this node: torchrun's, else that in the group."""
    local = os.environ.get("LOCAL_RANK", "")
    return int(local) if local.isdigit() else link.rank


class TorchLink:
    """One rank's end of a gloo group that it owns.

    Args:
        members: global ranks, in the order of the world. limit_s: how long it waits for another rank; 0: for ever.

    Attributes: ``sharing``: the ranks on this one's host; ``say``: function that tells what to call some ranks.
    """

    heap, say = None, staticmethod(ranks_text)

    def __init__(self, distributed, members, limit_s):
        self.distributed, self.members, self.limit_s = distributed, list(members), limit_s
        self.rank, self.size = self.members.index(distributed.get_rank()), len(self.members)
        patience = datetime.timedelta(seconds=limit_s) if limit_s else datetime.timedelta(days=365)
        self.group = distributed.new_group(sorted(self.members), timeout=patience, backend="gloo", use_local_synchronization=True)
        self.order = [sorted(self.members).index(m) for m in self.members]

    def allgather(self, value, call="allgather"):
        """Every rank's value (pickled), in rank order. `call` names the collective, which must be the same on all ranks."""
        if self.size == 1:
            return [value]
        said = [None] * self.size
        try:
            self.distributed.all_gather_object(said, (call, value), group=self.group)
        except RuntimeError as why:
            report = f"rank {self.rank} waited for {self.say([r for r in range(self.size) if r != self.rank])} in {call}"
            raise HangError(f"World: {report}, and gloo gave up ({str(why).splitlines()[0]}). All ranks of a world make its collective "
                            "calls. Look at what the missing ranks do, or raise PKNUMBA_HOST_LIMIT_S.", report=report) from why
        said = [said[i] for i in self.order]
        same_call([name for name, _ in said], self.say)
        return [value for _, value in said]

    def barrier(self, call="barrier"):
        """Return once every rank has called it."""
        self.allgather(None, call)

    def split(self, ranks):
        """The link to a sub-world of `ranks`, in their order; only they call it."""
        link = TorchLink(self.distributed, [self.members[r] for r in ranks], self.limit_s)
        said = link.allgather(tuple(ranks), "split")
        if len(set(said)) > 1:
            raise WorldError(f"World.split: the members of {list(ranks)} name different members. Every member passes the same ranks in "
                             "the same order.")
        return link

    def abort(self, code=1):
        """End this process at once: torchrun then ends the others."""
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def close(self):
        """Give the group back."""
        if self.group is not None and self.distributed.is_initialized():
            self.distributed.destroy_process_group(self.group)
        self.group = None
