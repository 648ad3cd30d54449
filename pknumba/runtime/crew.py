"""A local world seen from outside: it runs the ranks' code, and is itself no rank."""

from contextlib import nullcontext

from . import later
from .hang import ALARM
from .local import Threads
from .world import World
from ..errors import WorldError

__all__ = ["LocalWorld"]


class LocalWorld(World):
    """Several ranks in this process. Only ``run``, ``close``, ``session`` and the plain facts can be used from outside.

    Args:
        crew: what runs the ranks: ``on_cpu.Sessions`` or ``local.Threads``.
        make: function of a rank that makes its World.
    """

    def __init__(self, size, executor, hub, crew, make):
        self.size, self.executor, self.closed = size, executor, False
        self._hub, self._crew, self._parts, self._broken = hub, crew, [], None
        self._worlds = self._run([lambda rank=rank: make(rank) for rank in range(size)])
        self.num_sms = min(world.num_sms for world in self._worlds)

    def _run(self, mains):
        if isinstance(self._crew, Threads):
            return self._crew.run(mains, self._failed)
        return self._crew.run(mains)

    def _failed(self, rank, error):
        """A rank's thread ended with an error: whoever waits for it, on the host or on a device, gives up."""
        if self._hub.failed:
            return  # only told that another rank has failed
        self._hub.fail(f"rank {rank} failed with {type(error).__name__}")
        for world in getattr(self, "_worlds", []):
            world._here.abort(rank)

    def run(self, main, *args):
        """``main(world, *args)`` on every rank; the list of results, once what ranks have launched on their own streams has run. The first
        error is raised, and breaks the world."""
        self._enter()

        def body(world):
            def task():
                world._here.make_current()
                result = main(world, *args)
                if self.executor == "gpu" and not (world.closed or world._broken):      # broken: main has been told, and has gone on
                    world.synchronize()         # the caller's stream is another; and a wait that gave up is an error, not a wrong result
                return result
            return task

        try:
            with later.ranks_running() if self.executor == "gpu" else nullcontext():
                return self._run([body(world) for world in self._worlds])
        except BaseException as error:
            self._broken = f"{type(error).__name__} in run"
            self._stop(error)
            for world in self._worlds:
                world._broken, world.alarm = world._broken or self._broken, ALARM
            raise

    def _stop(self, error):
        """The ranks' threads may still wait, if it was Ctrl-C in this one: end their waits, on the host and on devices."""
        if isinstance(self._crew, Threads) and not self._hub.failed:
            self._hub.fail(f"{type(error).__name__} in the thread that runs the ranks")
            for world in self._worlds:
                world._here.abort()
            self._crew.join(5)

    @property
    def session(self):
        """The interpreter session of all ranks; None on GPUs."""
        self._enter()
        return None if isinstance(self._crew, Threads) else self._crew.get()

    def close(self):
        """Give back everything of every rank. A second call does nothing."""
        if self.closed:
            return
        self.closed = True
        if self._broken:
            for world in self._worlds:
                world._give_up(alone=True)
        else:
            self._run([world.close for world in self._worlds])

    def __exit__(self, kind, error, trace):
        self.close()

    def __getattribute__(self, name):
        if name in _OF_A_RANK:
            raise WorldError(f"World.{name}: this world has {self.size} ranks in one process. Each rank has its own view. Use "
                             "world.run(main), which calls main(world_of_rank).")
        return super().__getattribute__(name)

    def __repr__(self):
        return f"World({self.size} ranks, {self.executor}{', closed' if self.closed else ''})"


_OF_A_RANK = frozenset(("rank", "device", "stream", "barrier", "allgather", "agree", "split", "node", "across", "symmetric", "counters",
                        "asarray", "context", "error_record", "abort_word", "abort_table", "stream_of", "synchronize", "check",
                        "hang_names"))
