"""Virtual time: what each operation would cost on a card, with everything that roles share between them.

With a ``VirtualTime`` a session is a discrete-event simulation: whoever is earliest goes next. What is shared - the tensor cores and
the shared memory of an SM, its port to the L2, the L2, the memory, the links - are servers that take one request after the
other, at the rate of the whole; so whoever comes to a busy one waits. What lies in the L2 is known box by box.
"""

from collections import OrderedDict
from heapq import heappop, heappush
from math import prod

from ..errors import ConfigError
from .memory import root
from .tiles import SharedTile

#: Bytes that a warp loads before it waits: 16 bytes a lane, six times (``primitives.vectors``).
_ROUND = 3072
#: Elements up to which values are always moved: what a kernel may decide by.
_SMALL = 256


class Timed:
    """The queue of a session in virtual time: the earliest task or operation first."""

    def __init__(self, time):
        self.time, self.ready, self.serial = time, [], 0

    def add(self, task):
        """A task goes on after what it has spent."""
        at = max(self.time.now + task.cost + (self.time.step_s if task.block is not None else 0.0), task.until)
        task.cost = 0.0
        self._push(at, task)

    def add_operation(self, operation):
        self._push(operation.times[operation.position], operation)

    def _push(self, at, item):
        self.serial += 1
        heappush(self.ready, (at, self.serial, item))

    def next(self):
        """The earliest; the clock is set to it."""
        if not self.ready:
            return None
        self.time.now, _, item = heappop(self.ready)
        return item


class VirtualTime:
    """The clock of a session and what everything costs.

    Args:
        hardware: rates and latencies (``pknumba.tuning.Hardware``, or anything with its attributes).
        ranks_per_card: how many ranks share a card, its memory and its L2; 1: each has its own, and links to the others.
        values: False moves and multiplies no values, which is much faster; results are then meaningless. Arrays of up to 256
            elements are moved all the same, so that kernels which decide by them work.

    Attributes:
        now: seconds since the session began. busy: {server: seconds in which it worked}.
    """

    #: Seconds to issue one primitive: some thirty clocks.
    step_s = 2e-8

    def __init__(self, hardware, ranks_per_card=1, values=True):
        if not isinstance(ranks_per_card, int) or ranks_per_card < 1:
            raise ConfigError(f"VirtualTime: ranks_per_card = {ranks_per_card!r}. It is a number of ranks, at least 1.")
        self.hw, self.values, self._together = hardware, values, ranks_per_card
        self.now, self.busy, self._free, self._cached, self._held, self._homes = 0.0, {}, {}, {}, {}, {}

    # ---- what the interpreter asks
    def place(self, arrays):
        """Memory of all ranks, an array for each."""
        self._homes.update((id(array), rank) for rank, array in enumerate(arrays))

    def moves(self, region):
        """Whether the values of a region are moved."""
        return self.values or prod(region.shape) <= _SMALL

    def copy(self, task, source, target, combine):
        """(when the source is read, when the target is written) of a bulk copy that starts now."""
        nbytes, inside = prod(target.shape) * target.dtype.itemsize, isinstance(source, SharedTile)
        outer = target if inside else source
        start = self._serve(("port out" if inside else "port in", task.rank, int(task.block)), self.now, nbytes / self.hw.port)
        if isinstance(outer, SharedTile):               # between blocks of a cluster
            end = max(start, self._serve(("port in", outer.arena.label), self.now, nbytes / self.hw.port))
            return end, end + self.hw.load_s
        start = max(start, self._global(task, outer, nbytes, "tma_add" if combine else "tma", write=inside, combine=combine))
        away = self._home(task, outer) != self.card(task.rank)
        return start, start + (self.hw.peer_s if away else self.hw.hop_s if inside else self.hw.load_s)

    def multiply(self, task, rows, cols, depth):
        """When a multiplication that is issued now is done: the SM's tensor cores and its shared memory take them one by one."""
        place = task.rank, int(task.block)
        arithmetic = 2 * rows * cols * depth * self.hw.sms / self.hw.tensor
        operands = 2 * depth * (rows + -(-rows // 64) * cols) / self.hw.shared
        return max(self._serve(("tensor cores", *place), self.now, arithmetic), self._serve(("shared memory", *place), self.now, operands))

    def access(self, task, region, write):
        """A worker reads or writes a region itself; it goes on when it has what it read."""
        nbytes = prod(region.shape) * region.dtype.itemsize
        if isinstance(region, SharedTile):
            task.until = self._serve(("shared memory", task.rank, int(task.block)), self.now, nbytes / self.hw.shared)
            return
        done = self._global(task, region, nbytes, "register", write)
        if write:
            task.until = max(task.until, self._serve(("port out", task.rank, int(task.block)), self.now, nbytes / self.hw.port))
            return
        away = self._home(task, region) != self.card(task.rank)
        latency = self.hw.peer_touch_s if away else self.hw.touch_s
        at_once = _ROUND * (4 if task.role.scope == "warpgroup" else 1)
        task.until = max(task.until, done + latency, self.now + latency * -(-nbytes // at_once))

    def compute(self, task, elements):
        """Arithmetic on registers."""
        task.cost += elements / self.hw.alu

    def signal_s(self, rank, peer):
        """From a signal to its waiter."""
        return self.hw.hop_s if self.card(rank) == self.card(peer) else self.hw.peer_s

    def card(self, rank):
        """The card that a rank is on."""
        return rank // self._together

    # ---- servers
    def _serve(self, server, start, seconds):
        end = self._free[server] = max(self._free.get(server, 0.0), start) + seconds
        self.busy[server] = self.busy.get(server, 0.0) + seconds
        return end

    def _global(self, task, region, nbytes, by, write, combine=None):
        """When memory and links have moved the bytes of a window or span."""
        here, there = self.card(task.rank), self._home(task, region)
        held = self._in_cache(there, region, nbytes)
        end = self._serve(("L2", there), self.now, nbytes * (2 if combine else 1) / self.hw.cache_rate)
        if write:
            memory = self._serve(("memory", there), self.now, nbytes / self.hw.memory)
            end = max(end, memory - self.hw.cache / self.hw.memory)     # written back later, as far as the L2 has room
        elif not held:
            end = max(end, self._serve(("memory", there), self.now, nbytes / self.hw.memory))
        if here != there:
            seconds, (source, target) = nbytes / getattr(self.hw, by), (here, there) if write else (there, here)
            end = max(end, self._serve(("link out", source), self.now, seconds), self._serve(("link in", target), self.now, seconds))
        return end

    def _home(self, task, region):
        """The card that a window or span lies in; memory that is not symmetric is its own rank's."""
        array = region.view.array if hasattr(region, "view") else region.tensor.arrays[region.owner]
        return self.card(self._homes.get(id(root(array)), task.rank))

    def _in_cache(self, card, region, nbytes):
        """Whether the region lies in the card's L2; from now on it does."""
        known, key = self._cached.setdefault(card, OrderedDict()), place_of(region)
        found = key in known
        if found:
            known.move_to_end(key)
            return True
        known[key] = nbytes
        self._held[card] = self._held.get(card, 0) + nbytes
        while self._held[card] > self.hw.cache:
            self._held[card] -= known.popitem(last=False)[1]
        return False


def place_of(region):
    """What tells a window or span from others of the same memory."""
    if hasattr(region, "view"):
        array = region.view.array
        return array.__array_interface__["data"][0] + region.row * array.strides[0] + region.col * array.itemsize, region.cols
    return region.flat.__array_interface__["data"][0] + region.first * region.flat.itemsize, region.count
