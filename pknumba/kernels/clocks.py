"""How far the clocks of ranks' GPUs are apart: a signal goes to a rank and comes back, and both note their time."""

from ..primitives import i32, post, put, stamp, wait_until
from ..templates import Comm
from ..templates.clocks import notes, offsets, to_and_fro


class Clocks(Comm):
    """Rank 0 notes when it sent a signal and when the answer came; the other rank, when it saw the signal."""

    tensors, symmetric, counters = ("seen",), (), ("turns",)
    kinds, numbers = {"seen": "int32"}, {"rounds": 1, "base": 1}
    operator = "clock_offsets"

    @classmethod
    def driver(kernel, role):
        """One exchange after the other."""
        return lambda communicate, _: to_and_fro(kernel, communicate)

    @staticmethod
    def communicator(cfg, g, s, task):          # a warp: an exchange of rank 0 and rank task.owner
        if g.rank == 0:
            put(g.seen, i32(2 * task.id), stamp(s))
            post(g.turns, task.owner, task.owner)
            wait_until(g.turns, task.owner, task.step, False)
            put(g.seen, i32(2 * task.id + 1), stamp(s))
        elif g.rank == task.owner:
            wait_until(g.turns, task.owner, task.step, False)
            put(g.seen, i32(2 * task.id), stamp(s))
            post(g.turns, task.owner, 0)


def clock_offsets(world):
    """Nanoseconds by which the clock of each rank's GPU is ahead of rank 0's, a list of int, the same on every rank; collective.

    Right to half of the time that a signal takes to a rank and back, a microsecond or two over NVLink, and within 2**31 ns: what is read
    of clocks besides must say how often 4.3 seconds are to be added. On the interpreter, which has one clock, zeros.

    Raises: WorldError if the world is closed or broken; HangError if a rank does not come.
    """
    return offsets(notes(Clocks, world))
