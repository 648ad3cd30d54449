"""The engine of ranks in one process: pretended nodes, for tests and for looking at schedules."""

from .engine import Engine
from .. import driver
from ...errors import WorldError

__all__ = ["HubEngine"]


class HubEngine(Engine):
    """Messages are put into a box that all ranks of the process see, and copied from there."""

    name = "process"

    def __init__(self, link, layout, here):
        super().__init__(link, layout, here)
        self.mail = link.hub.__dict__.setdefault("mail", {})

    def _start(self, sends, receives, label, stream):
        if self.here.device is not None:
            self.here.synchronize(stream)
        for rank, array in sends:
            # A copy on the interpreter, where nobody waits for it to be read; on a device wait() does.
            content = array.copy() if self.here.device is None else array
            with self.link.hub.lock:
                self.mail.setdefault((self.link.rank, rank, label), []).append(content)
        return sends, receives, label, stream

    def wait(self, exchange):
        """Copy what has come. A rank that does not come is found by the scheduler of the process, or by the limit."""
        sends, receives, label, stream = exchange
        for rank, array in receives:
            key = (rank, self.link.rank, label)
            self.link.hub.block(lambda key=key: self.link.hub.failed or self.mail.get(key),
                                lambda rank=rank: f"{self.layout.say([rank])} in {label}")
            self._look()
            self._copy(array, self.mail[key][0], stream)
            with self.link.hub.lock:
                self.mail[key].pop(0)
                if not self.mail[key]:
                    del self.mail[key]
        if self.here.device is not None:
            for rank, _ in sends:
                key = (self.link.rank, rank, label)
                self.link.hub.block(lambda key=key: self.link.hub.failed or not self.mail.get(key),
                                    lambda rank=rank: f"{self.layout.say([rank])} to read in {label}")
                self._look()

    def _look(self):
        if self.link.hub.failed:
            raise WorldError(f"World: {self.link.hub.failed}. A world whose rank failed is broken. Make a new one.")

    def _copy(self, target, source, stream):
        if self.here.device is None:
            target[...] = source
            return
        driver.copy(target.pointer, source.pointer, target.nbytes, stream)
        self.here.synchronize(stream)
