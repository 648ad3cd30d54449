"""What an engine is: it moves bytes between ranks of different nodes, and counts them."""

import os
import time

from ...errors import ConfigError, HangError, WorldError

__all__ = ["Engine", "chunk_bytes", "poll"]


def chunk_bytes():
    """About how many bytes of a node's data are in flight between nodes at once: PKNUMBA_CHUNK_BYTES, or 32 MiB."""
    text = os.environ.get("PKNUMBA_CHUNK_BYTES", str(32 << 20))
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"PKNUMBA_CHUNK_BYTES: {text!r}. It is a number of bytes, at least 1. Give one, or unset it.")
    return int(text)


class Engine:
    """Exchanges between ranks of different nodes.

    Memory is given as 1-D arrays without gaps: NumPy on the interpreter, DeviceArray on a GPU. Both ends of a message name the same
    ``label``, so that calls which do not belong together never take each other's data; they wait for ever instead, that is, for the limit.

    Args:
        link: of all ranks of the world, for this engine alone.
        layout: the world's Layout.
        here: this rank's Cpu or Gpu.

    Attributes: ``name``; ``sent``, ``messages``: bytes and messages that this rank has sent to other nodes.
    """

    name = ""
    asynchronous = False  # whether wait() orders the stream only, and host code goes on

    def __init__(self, link, layout, here):
        self.link, self.layout, self.here = link, layout, here
        self.sent = self.messages = 0

    def start(self, sends, receives, label, stream=0):
        """Begin an exchange: ``sends`` and ``receives`` are lists of (rank, array); messages of two ranks keep their order.

        Sends read what earlier work of ``stream`` has written, and receives write after it. Returns an object for :meth:`wait`.
        """
        sends, receives = ([(rank, array) for rank, array in items if array.size] for items in (sends, receives))
        self.sent += sum(array.nbytes for _, array in sends)
        self.messages += len(sends)
        return self._start(sends, receives, label, stream)

    def wait(self, exchange):
        """Until later work of the exchange's stream may use what it received and overwrite what it sent.

        Raises HangError, naming the rank and its node, for one that does not come; WorldError where the engine says that it is gone.
        """
        raise NotImplementedError

    def check(self):
        """Raise HangError if an exchange that nobody waits for on the host has outlasted its limit."""

    def close(self):
        """Give back what the engine holds. Collective."""
        self.link.close()

    def abandon(self):
        """Give back what this rank can alone."""

    def missing(self, ranks, label):
        """The HangError for ranks that did not come in time."""
        limit, me = self.link.limit_s, self.layout.say([self.link.rank])
        report = f"{me} has waited {limit:g} s for {self.layout.say(ranks)} in {label}"
        nodes = sorted({self.layout.names[self.layout.node_of(rank)] for rank in ranks})
        return HangError(f"World: {report}. All ranks make the same calls, and every node must be reachable. Look at what is on "
                         f"node {' and '.join(nodes)}, or raise PKNUMBA_HOST_LIMIT_S.", report=report, ranks=tuple(ranks), nodes=nodes)

    def gone(self, ranks, label, why):
        """The WorldError for ranks that the engine knows to have ended."""
        nodes = sorted({self.layout.names[self.layout.node_of(rank)] for rank in ranks})
        return WorldError(f"World: {self.layout.say(ranks)} cannot be reached in {label} ({why}). All ranks live until the world is "
                          f"closed. Look at what ended on node {' and '.join(nodes)}.", ranks=tuple(ranks), nodes=nodes)


def poll(done, limit_s, late, look=None):
    """Ask done() until it says yes, with longer and longer naps; past the limit (0: none) raise what late() gives.

    Args:
        look: called now and then; it raises what else is wrong.
    """
    start, spins = time.monotonic(), 0
    while not done():
        spins += 1
        if spins > 200:
            time.sleep(min(1e-3, 1e-6 * (spins - 200)))
            if look:
                look()
            if limit_s and time.monotonic() - start > limit_s:
                raise late()
