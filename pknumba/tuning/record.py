"""The timeline of a call on GPUs: what each role recorded, in the form of the interpreter's events."""

from ..errors import WorldError
from ..interpreter.history import Event
from ..kernels.clocks import clock_offsets
from ..runtime.intervals import CODES

__all__ = ["record", "events_of"]

#: Warps of a warpgroup: a consumer's number is that of its first warp over this.
_GROUP = 4


def events_of(rank, intervals, start):
    """Events of the intervals of one rank, in nanoseconds from ``start``; ``block`` is the SM."""
    shown = []
    for i in intervals:
        lane = i.role
        if i.role in ("consumer", "communicator"):
            lane += f" {i.warp // _GROUP if i.role == 'consumer' else i.warp}"
        kind = "wait" if i.code != 1 else {"consumer": "mma", "communicator": "access"}.get(i.role, "copy")
        what = f"task {i.number}" if i.code == 1 else f"{CODES[i.code]} ({i.number})"
        shown.append(Event(i.begin - start, i.end - start, f"rank {rank} SM {i.sm:3d} {lane}", rank, i.sm, i.role, kind, what, None))
    return shown


def record(world, call):
    """The events of one call, of all ranks, on every rank; collective. Clocks of ranks' GPUs are compared first, and times are rank 0's.

    Args:
        world: made with PKNUMBA_TIMELINE=1. call: function of no arguments; it is called twice, and the second time counts.

    Raises WorldError, on every rank, where a rank records nothing.
    """
    ring = getattr(world, "intervals", None)
    if not all(world.allgather(ring is not None)):
        raise WorldError("timeline: this world records nothing. Kernels record where PKNUMBA_TIMELINE=1 was set when the world was made. "
                         "Set it, and make the world on GPUs.")
    call()
    world.synchronize()
    world.barrier()
    ahead = clock_offsets(world)
    ring.clear()
    world.barrier()
    call()
    world.synchronize()
    world.barrier()
    everyone = world.allgather(ring.read())
    ahead = whole([min((i.begin for i in found), default=0) for found in everyone], ahead)
    start = min((i.begin - ahead[rank] for rank, found in enumerate(everyone) for i in found), default=0)
    return [e for rank, found in enumerate(everyone) for e in events_of(rank, found, start + ahead[rank])]


def whole(begins, ahead):
    """How far each rank's clock is ahead of rank 0's, where that is known within 2**32 ns, and calls began at about the same time.

    Args:
        begins: when each rank's call began by its own clock, 0 where it recorded nothing. ahead: as ``clock_offsets`` says.
    """
    turns = [round((begin - begins[0] - least) / 2**32) if begin and begins[0] else 0 for begin, least in zip(begins, ahead)]
    return [least + turn * 2**32 for turn, least in zip(turns, ahead)]
