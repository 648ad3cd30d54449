"""Semaphores (mbarriers): hand a tile from one role to another inside one block.

A semaphore starts in phase 0 and flips when every declared arrival is in and no announced byte is outstanding, so
``wait(sem, p)`` returns once the phase of parity ``p`` is complete. ``arrive`` releases and ``wait`` acquires at block
scope: what a role wrote before its arrive is visible after the wait. A tile written by ordinary stores and read by the
bulk copy engine or wgmma also needs ``fence_async`` before the arrive.

Semaphores declared ``of="cluster"`` are completed by the workers of all blocks of a cluster: each arrives on its own block's and, at
the same place, on that of every other block. Towards those an arrival says that this worker has *read* what it read, so memory that
all of them fill may be filled again (``load_multicast``); it publishes no ordinary writes. A release at cluster scope would, and is a
fence of the whole GPU each time: 20 % of a GEMM.
"""

from ..lowering import is_accumulator, need, primitive

ANY = ("thread", "warp", "warpgroup")


def _arrives(sem):
    need(not sem.ring, f"{sem.role.name}: semaphore {sem.ident} is a ring of semaphores. Index it with a stage.")
    need(sem.role.name == sem.by, f"{sem.role.name}: arrives on semaphore {sem.ident}, declared by={sem.by!r}. Only that role may "
         "arrive. Declare another semaphore.")


@primitive(scope=ANY)
def wait(sem, phase):
    """Block until the phase of that parity is complete (acquire, block scope).

    Args:
        sem: one semaphore, ``s.name[stage]``.
        phase: parity, 0 or 1. ``phase ^ 1`` of the current lap waits for the previous one; the first lap passes at once.

    On the device a wait longer than the world's limit records who waited for what and leaves; the host raises HangError.

    PTX: mbarrier.try_wait.parity.acquire.cta.
    """
    sem.wait(phase)


@wait.lowering
def _(sem, phase):
    need(not sem.ring, f"{sem.role.name}: semaphore {sem.ident} is a ring of semaphores. Index it with a stage.")
    once = ("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [$1], $2; selp.u32 $0, 1, 0, p; }")
    again = "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [$2], $3;"

    def emit(p, sem_at, phase):
        # try_wait waits inside the instruction, where nothing sees it
        ready = p(once.replace("try_wait", "test_wait") if p.recording_waits else once, sem_at, phase, out=[p.i32])
        with p.when(p.b.icmp_unsigned("==", ready, p.const(0)), likely=False):
            base = p.shared_base()
            with p.waiting(sem.role, p.SEMAPHORE_WAIT, p.b.sub(sem_at, base)):
                done, = p.spin(again, base, sem_at, phase, patient=True)
            with p.when(p.b.icmp_unsigned("==", done, p.const(0)), likely=False):
                p.give_up(sem.role, p.SEMAPHORE, p.b.sub(sem_at, base), phase, p.const(0), base)
    return emit


@primitive(scope=ANY)
def arrive(sem, after=None):
    """One arrival of this worker (release, block scope), once all its threads are here. Only the role named in the declaration may arrive.

    Args:
        sem: one semaphore, ``s.name[stage]``; one ``of="cluster"`` stands for those of all blocks of the cluster.
        after: what proves that the threads of a warpgroup have met since each last touched what is handed over, so that they need not meet
            here: the register tile of the ``mma_wait`` that was the last to read it, or the shared tile of a ``fence_async`` just before.
            None: they meet here.

    PTX: bar.sync of the worker (a warp: bar.warp.sync) unless ``after``, then mbarrier.arrive.release.cta by one of its threads; in a
    cluster by one for each block, after mapa.
    """
    sem.arrive(after)


@arrive.lowering
def _(sem, after=None):
    # One thread arrives for all. The warps of a warpgroup may be apart (seen on an H200): one that is late would read what comes next, or
    # wait for a phase that another has followed.
    _arrives(sem)
    met = is_accumulator(after) or hasattr(after, "panels")
    need(met or getattr(after, "name", "none") == "none", f"{sem.role.name}: arrives on {sem.ident} after {after}. A register tile of "
         "mma_wait or a shared tile of fence_async says that the worker's threads have met. Pass one of them, or none.")
    remote = "{ .reg .b32 a; mapa.shared::cluster.u32 a, $0, $1; mbarrier.arrive.release.cta.shared::cluster.b64 _, [a]; }"

    def emit(p, sem_at, _=None):
        if not met:
            p.sync_worker(sem.role)
        if sem.blocks > 1:
            with p.leaders(sem.role.scope, sem.blocks) as block:
                p(remote, sem_at, block)
        else:
            with p.leader(sem.role.scope):
                p("mbarrier.arrive.release.cta.shared::cta.b64 _, [$0];", sem_at)
    return emit


@primitive(scope="thread")
def expect(sem, *tiles):
    """Arrive (release, block scope), and announce that the bytes of ``tiles`` will be loaded: the phase completes with them.

    Args:
        sem: one semaphore of this block, ``s.name[stage]``, on which this role arrives.
        tiles: the shared tiles that ``load_async`` or ``load_multicast`` will fill and complete on ``sem``.

    PTX: mbarrier.arrive.expect_tx.release.cta.
    """
    sem.expect(sum(tile.nbytes for tile in tiles))


@expect.lowering
def _(sem, *tiles):
    _arrives(sem)
    need(sem.blocks == 1, f"{sem.role.name}: expects bytes on {sem.ident}, declared of=\"cluster\". A block announces its own bytes on its "
         "own semaphore. Declare another one.")
    nbytes = sum(tile.nbytes for tile in tiles)
    need(nbytes < 1 << 20, f"{sem.role.name}: expects {nbytes} bytes in one phase. An mbarrier counts up to 1048575. Use smaller stages.")
    return lambda p, sem_at, *_: p(f"mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [$0], {nbytes};", sem_at)
