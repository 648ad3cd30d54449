"""Signals between ranks: counters that only grow.

``signal`` releases and ``wait_until`` acquires at system scope, so what a rank wrote before its signal is visible to the
peer after its wait; data written by the copy engine must have been waited for with ``store_async_wait``. Waits test
``>=`` against a number of arrivals since the counters were made (an epoch), so nothing is ever reset.
"""

from ..interpreter import current
from ..interpreter import keep_epoch as cpu_keep_epoch
from ..interpreter.report import site
from ..lowering import constant, insist, primitive

#: Byte offset of how many counters there are, in their parameter (after ``lowering.ptx``'s fields).
COUNT = 24


def _poll(p, base, at, value):
    """(1 or 0, value seen last) of a bounded wait for the counter at an address to reach a value, around its wrap."""
    reached = "ld.acquire.sys.global.u32 $1, [$3]; sub.u32 d, $1, $4; setp.ge.s32 p, d, 0;"
    return p.spin(reached, base, at, value, declare=".reg .u32 d;", seen=1)


def _address(p, table, number):
    return p.b.add(table, p.wide(p.b.shl(number, p.const(2))))


def _peer(p, counters_at, peer):
    """Address of a rank's counters."""
    table = p.parameter(p.i64, counters_at, 8)
    return p.of_rank(table, peer)


def check_number(p, counters, counters_at, number):
    """In a debug build: the counters have one of that number."""
    insist(p, counters.role, f"number of counter {counters.ident}", number,
           lambda: p.parameter(p.i32, counters_at, COUNT))


@primitive(scope="thread")
def signal(counters, number, peer):
    """Add one to a counter of rank ``peer`` (release, system scope).

    Args:
        counters: ``g.name``; number: index of the counter; peer: rank, possibly this one.

    PTX: red.release.sys.global.add.u32.
    """
    counters.add(peer, number, 1)


@signal.lowering
def _(counters, number, peer):
    def emit(p, counters_at, number, peer):
        check_number(p, counters, counters_at, number)
        insist(p, counters.role, f"rank of counters {counters.ident}", peer, lambda: p.parameter(p.i32, counters_at, 16))
        p("red.release.sys.global.add.u32 [$0], 1;", _address(p, _peer(p, counters_at, peer), number))
    return emit


@primitive(scope=("thread", "warp"))
def signal_all(counters, number):
    """Everything this worker wrote, then one more on that counter of every rank (release, system scope).

    Args:
        counters: ``g.name``; number: index of the counter.

    PTX: fence.proxy.async in every thread, bar.warp.sync, fence.acq_rel.sys by one of them (what the others wrote is ordered
    before it by the barrier), then one red.relaxed.sys.global.add.u32 for each rank: one fence, however many ranks.
    """
    for peer in range(counters.world_size):
        counters.add(peer, number, 1)


@signal_all.lowering
def _(counters, number):
    def emit(p, counters_at, number):
        check_number(p, counters, counters_at, number)
        p("fence.proxy.async;")
        p.sync_worker(counters.role)
        size = p.parameter(p.i32, counters_at, 16)
        with p.leader(counters.role.scope):
            p("fence.acq_rel.sys;")
            for peer in p.loop(size):
                p("red.relaxed.sys.global.add.u32 [$0], 1;", _address(p, _peer(p, counters_at, peer), number))
    return emit


@primitive(scope=("thread", "warp"))
def wait_until(counters, number, value, copies=True):
    """Block until this rank's counter is at least ``value`` (acquire, system scope), then let the copy engine see the data.

    Args:
        counters: ``g.name``; number: index of the counter; value: uint32 compared around its wrap, so that counters may
            grow for ever.
        copies: constant; False where this worker itself loads the data and starts no bulk copy before its next wait: no proxy fence
            then, which would also wait until everything that the worker stored before has arrived.

    On the device a wait longer than the world's limit records who waited for what and leaves; the host raises HangError.

    PTX: ld.acquire.sys.global.u32 in a loop bounded by %globaltimer; fence.proxy.async if ``copies``.
    """
    counters.wait(number, value)
    current().plain = None if copies else site()


@wait_until.lowering
def _(counters, number, value, copies):
    role, fenced = counters.role, copies is None or constant(copies, "wait_until: copies")

    def emit(p, counters_at, number, value, *_):
        check_number(p, counters, counters_at, number)
        base = p.shared_base()
        at = _address(p, p.parameter(p.i64, counters_at, 0), number)
        with p.waiting(role, p.COUNTER_WAIT, number):
            done, seen = _poll(p, base, at, value)
        if role.scope == "warp":                                # lanes agree: one that gave up takes the others along
            vote = "{ .reg .pred p; setp.ne.u32 p, $1, 0; vote.sync.all.pred p, p, 0xffffffff; selp.u32 $0, 1, 0, p; }"
            done = p(vote, done, out=[p.i32])
        with p.when(p.b.icmp_unsigned("==", done, p.const(0)), likely=False):
            p.give_up(role, p.COUNTER + (counters.number << 8), number, value, seen, base)
        if fenced:
            p("fence.proxy.async;")
    return emit


@primitive(scope=("thread", "warp"))
def barrier(counters, epoch):
    """Every worker that calls it on any rank has come: a barrier of all ranks, for their ``epoch``-th meeting.

    Counters ``number`` = rank of the one that came; needs ``world_size`` counters that nothing else uses.

    Args:
        counters: ``g.name``; epoch: how many times the ranks have met, this time included.

    PTX: as ``signal_all`` and ``wait_until``.
    """
    signal_all.__wrapped__(counters, counters.rank)
    for peer in range(counters.world_size):
        counters.wait(peer, epoch)


@barrier.lowering
def _(counters, epoch):
    from ..lowering import PRIMITIVES
    announce, await_ = PRIMITIVES["signal_all"].lower(counters, None), PRIMITIVES["wait_until"].lower(counters, None, None, None)

    def emit(p, counters_at, epoch):
        announce(p, counters_at, p.parameter(p.i32, counters_at, 20))
        for peer in p.loop(p.parameter(p.i32, counters_at, 16)):
            await_(p, counters_at, peer, epoch)
    return emit


@primitive(scope=("thread", "warp"))
def keep_epoch(counters, epoch):
    """The call of that epoch is over on this rank: the next launch counts on from it, in a replayed CUDA graph too.

    Args:
        counters: any ``g.name`` (gives the worker's scope); epoch: ``g.epoch``.

    Every role of the call must have started before, or a late one takes the next call's number for its own: wait for something that
    every block does. The interpreter's host counts by itself; that order it checks.

    PTX: st.global.u32 to the launch context.
    """
    cpu_keep_epoch()


@keep_epoch.lowering
def _(counters, epoch):
    def emit(p, counters_at, epoch):
        with p.leader(counters.role.scope):
            p.keep_epoch(epoch)
    return emit
