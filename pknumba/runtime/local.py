"""Ranks in one process: how they meet.

A :class:`Hub` is shared by all ranks of a world; a :class:`LocalLink` is one rank's end of it. Who waits how is the hub's
``block``: host tasks of an interpreter session (``on_cpu.Sessions``), or one thread for each rank (:class:`Threads`).
"""

import threading
import time

from .agree import ranks_text, same_call
from ..errors import HangError, WorldError

__all__ = ["Hub", "LocalLink", "Threads"]


class Hub:
    """Where `size` ranks exchange values: the n-th exchange of each rank is the same exchange.

    Args:
        block: function (condition, why) that returns once condition() is true; why() says what is waited for.
    """

    def __init__(self, size, block):
        self.size, self.block = size, block
        self.lock = threading.RLock()
        self.turns, self.boxes, self.parts, self.failed, self.wills = [0] * size, {}, {}, None, []

    def exchange(self, rank, call, value):
        """Every rank's `value`, in rank order; `call` names the collective, which must be the same on all ranks."""
        with self.lock:
            turn = self.turns[rank]
            self.turns[rank] += 1
            box = self.boxes.setdefault(turn, {})
            box[rank] = call, value
        self.block(lambda: self.failed or len(box) == self.size, lambda: self._missing(call, box))
        if self.failed:
            raise WorldError(f"World: {self.failed}. A world whose rank failed is broken. Make a new one.", told=True)
        with self.lock:
            self.boxes.pop(turn, None)  # complete: whoever still needs the box holds it
        same_call([box[r][0] for r in range(self.size)])
        return [box[r][1] for r in range(self.size)]

    def _missing(self, call, box):
        missing = [r for r in range(self.size) if r not in box]
        return f"{ranks_text(missing) if missing else 'its turn'} in {call}"

    def part(self, rank, ranks):
        """The hub of a sub-world of these `ranks` (in their order), the same for each member that asks."""
        with self.lock:
            number = sum(1 for key, askers in self.parts.items() if key[0] == ranks and rank in askers["by"])
            entry = self.parts.setdefault((ranks, number), {"hub": Hub(len(ranks), self.block), "by": set()})
            entry["by"].add(rank)
            return entry["hub"]

    def fail(self, why):
        """Break the world: whoever waits in it, or comes later, gets WorldError."""
        with self.lock:
            self.failed = self.failed or why
            parts = [entry["hub"] for entry in self.parts.values()]
        for hub in parts:
            hub.fail(why)


class LocalLink:
    """One rank's end of a hub."""

    heap = None  # only processes need one

    def __init__(self, hub, rank):
        self.hub, self.rank, self.size = hub, rank, hub.size

    def allgather(self, value, call="allgather"):
        """Every rank's value (the object itself, not a copy), in rank order."""
        if self.size == 1:
            return [value]
        return self.hub.exchange(self.rank, call, value)

    def barrier(self, call="barrier"):
        """Return once every rank has called it."""
        self.allgather(None, call)

    def split(self, ranks):
        """The link to a sub-world of `ranks`, of which this rank is one."""
        return LocalLink(self.hub.part(self.rank, ranks), ranks.index(self.rank))

    def tell(self, why, follows=False):
        """This rank has failed: every other rank is to know. Returns the ranks that are gone: none."""
        self.hub.fail(why)
        return ()

    def dropped(self, give_back):
        """This rank's world was dropped, not closed. The last one to be dropped has everybody's memory given back."""
        wills = self.hub.wills
        wills.append(give_back)
        if len(wills) == self.size:
            while wills:
                wills.pop()()

    def close(self):
        """Nothing is held."""


class Threads:
    """Ranks as threads: each may wait inside the driver, in CuPy or in torch, while the others go on launching.

    Args:
        limit_s: how long a rank waits for another; 0: for ever.
    """

    def __init__(self, limit_s):
        self.limit_s, self.threads = limit_s, []

    def block(self, condition, why):
        """Poll, with longer and longer naps. Raises HangError past the limit."""
        start, nap = time.monotonic(), 1e-5
        while not condition():
            time.sleep(nap)
            nap = min(nap * 1.5, 2e-3)
            if self.limit_s and time.monotonic() - start > self.limit_s:
                report = f"{threading.current_thread().name} has waited {self.limit_s:g} s for {why()}"
                raise HangError(f"World: {report}. All ranks of a world make its collective calls. Look at what the missing "
                                "ranks do, or raise PKNUMBA_HOST_LIMIT_S.", report=report)

    def join(self, seconds):
        """Give the threads of a run that was interrupted so long to end.

        By events of our own: a thread that was not started cannot be joined, and one whose join was interrupted counts as ended.
        """
        until = time.monotonic() + seconds
        for thread, ended in self.threads:
            if thread.ident is not None:
                ended.wait(max(0.0, until - time.monotonic()))

    def run(self, mains, failed):
        """Run every function of `mains` in a thread of its own; their results. On an error, `failed(rank, error)` is called at
        once, so that the others stop waiting; the first error is raised once all threads have ended."""
        results, errors = [None] * len(mains), []

        def body(rank, main):
            try:
                results[rank] = main()
            except BaseException as error:  # noqa: B902 - whatever it is belongs to the caller of run
                errors.append(error)
                failed(rank, error)
            finally:
                events[rank].set()

        events = [threading.Event() for _ in mains]
        threads = [threading.Thread(target=body, args=item, name=f"rank {item[0]}", daemon=True) for item in enumerate(mains)]
        self.threads = list(zip(threads, events))
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # so that Ctrl-C reaches us
        if errors:
            # a rank may hear of another's failure before that one's error has come here
            raise next((error for error in errors if not getattr(error, "told", False)), errors[0])
        return results
