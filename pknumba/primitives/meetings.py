"""How ranks meet without a barrier of their own: a block of every rank announces, and waits for the same block of the others.

Counters have a number for each (source rank, block) and only grow. A warp does it for all: its lanes signal, or poll, one
rank each, so that eight ranks cost no more time than one.
"""

from ..lowering import Int, primitive
from .signal import _address, _peer, _poll, check_number


@primitive(scope="warp")
def times(counters, number):
    """How often this rank's counter has been added to so far (relaxed): of a counter that only this block adds to, its past calls.

    Args:
        counters: ``g.name``; number: index of the counter.

    PTX: ld.relaxed.sys.global.u32.
    """
    return counters.value(number)


@times.lowering
def _(counters, number):
    def emit(p, counters_at, number):
        at = _address(p, p.parameter(p.i64, counters_at, 0), number)
        return p("ld.relaxed.sys.global.u32 $0, [$1];", at, out=[p.i32])
    return Int, emit


def _ranks(p, size):
    """``for rank in _ranks(p, size)``: each lane takes one rank in 32."""
    b = p.b
    for turn in p.loop(b.lshr(b.add(size, p.const(31)), p.const(5))):
        rank = b.add(p.lane(), b.shl(turn, p.const(5)))
        with p.when(b.icmp_unsigned("<", rank, size)):
            yield rank


@primitive(scope="warp")
def announce(counters, number):
    """What this block wrote before (its warps have met: ``sync``), then one more on that counter of every rank (release, system scope).

    Args:
        counters: ``g.name``; number: index of the counter.

    PTX: bar.warp.sync, fence.acq_rel.sys, red.relaxed.sys.global.add.u32, a lane for each rank.
    """
    for peer in range(counters.world_size):
        counters.add((counters.rank + peer) % counters.world_size, number, 1)


@announce.lowering
def _(counters, number):
    def emit(p, counters_at, number):
        check_number(p, counters, counters_at, number)
        p("bar.warp.sync 0xffffffff; fence.acq_rel.sys;")
        for rank in _ranks(p, p.parameter(p.i32, counters_at, 16)):
            p("red.relaxed.sys.global.add.u32 [$0], 1;", _address(p, _peer(p, counters_at, rank), number))
    return emit


@primitive(scope="warp")
def await_all(counters, first, step, value):
    """Block until this rank's counters first, first + step, ..., one for each rank, are at least ``value`` (acquire, system scope).

    Args:
        counters: ``g.name``; first, step: numbers of counters; value: uint32, compared around its wrap.

    On the device a wait longer than the world's limit records who waited for what and leaves; the host raises HangError.

    PTX: ld.acquire.sys.global.u32 in a loop bounded by %globaltimer, a lane for each rank, bar.warp.sync.
    """
    for peer in range(counters.world_size):
        counters.wait(first + peer * step, value)


@await_all.lowering
def _(counters, first, step, value):
    def emit(p, counters_at, first, step, value):
        with p.waiting(counters.role, p.COUNTER_WAIT, first):
            for rank in _ranks(p, p.parameter(p.i32, counters_at, 16)):
                _until(p, counters, counters_at, p.b.add(first, p.b.mul(rank, step)), value)
            p("bar.warp.sync 0xffffffff;")
    return emit


def _until(p, counters, counters_at, number, value):
    """Emit a wait for one of this rank's counters; a lane that waits too long says so and leaves."""
    check_number(p, counters, counters_at, number)
    base = p.shared_base()
    done, seen = _poll(p, base, _address(p, p.parameter(p.i64, counters_at, 0), number), value)
    with p.when(p.b.icmp_unsigned("==", done, p.const(0)), likely=False):
        p.give_up(counters.role, p.COUNTER + (counters.number << 8), number, value, seen, base)


@primitive(scope="warp")
def check_in(counters, number):
    """What this block wrote before (its warps have met: ``sync``), then one more on this rank's own counter (release, device scope).

    Args:
        counters: ``g.name``; number: index of the counter.

    PTX: bar.warp.sync, fence.acq_rel.gpu, red.relaxed.gpu.global.add.u32, by one lane.
    """
    counters.add(counters.rank, number, 1)


@check_in.lowering
def _(counters, number):
    def emit(p, counters_at, number):
        check_number(p, counters, counters_at, number)
        p("bar.warp.sync 0xffffffff;")
        with p.leader("warp"):
            p("fence.acq_rel.gpu; red.relaxed.gpu.global.add.u32 [$0], 1;", _address(p, p.parameter(p.i64, counters_at, 0), number))
    return emit


@primitive(scope="warp")
def await_blocks(counters, first, count, value):
    """Block until blocks of this rank have checked in: counters first to first + count - 1 are at least ``value`` (acquire, system scope).

    Args:
        counters: ``g.name``; first: index of the first; count: how many, at most 32, possibly none.
        value: uint32, compared around its wrap.

    On the device a wait longer than the world's limit records who waited for what and leaves; the host raises HangError.

    PTX: ld.acquire.sys.global.u32 in a loop bounded by %globaltimer, a lane for each counter, bar.warp.sync.
    """
    for number in range(int(first), int(first) + int(count)):
        counters.wait(number, value)


@await_blocks.lowering
def _(counters, first, count, value):
    def emit(p, counters_at, first, count, value):
        with p.waiting(counters.role, p.COUNTER_WAIT, first):
            with p.when(p.b.icmp_signed("<", p.lane(), count)):
                _until(p, counters, counters_at, p.b.add(first, p.lane()), value)
            p("bar.warp.sync 0xffffffff;")
    return emit


@primitive(scope="warp")
def tick(counters, number):
    """One more on this rank's own counter: this block's call is over. Orders nothing.

    Args:
        counters: ``g.name``; number: index of the counter.

    PTX: red.relaxed.gpu.global.add.u32.
    """
    counters.add(counters.rank, number, 1, release=False)


@tick.lowering
def _(counters, number):
    def emit(p, counters_at, number):
        with p.leader("warp"):
            p("red.relaxed.gpu.global.add.u32 [$0], 1;", _address(p, p.parameter(p.i64, counters_at, 0), number))
    return emit
