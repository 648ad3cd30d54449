"""When a role did what, on the device: intervals in a ring of memory, if the kernel is compiled for it (PKNUMBA_TIMELINE=1)."""

from ..lowering import Int, primitive

ANY = ("thread", "warp", "warpgroup")


@primitive(scope=ANY)
def stamp(s):
    """The device's nanosecond clock, its low 32 bits; 0 on the interpreter, whose session keeps its own history.

    Args:
        s: the block's shared memory (names the role).

    PTX: mov.u32 of %globaltimer_lo.
    """
    return 0


@stamp.lowering
def _(s):
    return Int, lambda p, s_at: p.stamp()


@primitive(scope=ANY)
def record(s, begin, number):
    """This worker was at task ``number`` from ``begin`` until now: an interval in its lane of the ring. Does nothing on the interpreter.

    Args:
        s: the block's shared memory (names the role). begin: what ``stamp`` gave. number: int32.

    PTX: st.global.v4.u32 by one thread.
    """


@record.lowering
def _(s, begin, number):
    return lambda p, s_at, begin, number: p.record(s.role, p.TASK, begin, number)
