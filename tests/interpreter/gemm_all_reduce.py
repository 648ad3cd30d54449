"""GEMM + all-reduce as plain role functions on the interpreter's API: the kernel that its tests and speed script run.

C = sum over ranks of A_r @ B_r. Per rank: `blocks` compute blocks (loader, consumers, storer) and one communicator block
that reduces the tiles the rank owns and writes them to every rank. ``bug`` names a mistake to make.
"""

from dataclasses import dataclass

import numpy as np

from pknumba import interpreter as cpu
from pknumba.tiles import Role, Semaphore, Tile

BUGS = ("no_full_wait", "no_empty_wait", "arrive_before_mma_wait", "no_c_empty_wait", "signal_after_read_wait", "short_wait",
        "stuck_parity", "lost_arrive", "lost_signal", "no_fence", "extra_arrive", "wrong_arriver", "early_columns", "no_expect",
        "second_store_wait")


@dataclass(frozen=True)
class Problem:
    m: int = 512
    n: int = 512
    k: int = 512
    tile_m: int = 128
    tile_n: int = 256
    tile_k: int = 64
    world: int = 4
    blocks: int = 2
    stages: int = 3
    consumers: int = 2
    dtype: str = "bfloat16"
    bug: str = ""
    calls: int = 1
    resident: int = None

    @property
    def grid(self):
        return self.m // self.tile_m, self.n // self.tile_n

    @property
    def tasks(self):
        return self.grid[0] * self.grid[1]

    @property
    def part_m(self):
        return self.tile_m // self.consumers

    @property
    def k_tiles(self):
        return self.k // self.tile_k

    def coord(self, task):
        return divmod(task, self.grid[1])


SMALL = Problem(m=64, n=64, k=64, tile_m=16, tile_n=32, tile_k=16, stages=2, dtype="float32")


def loader(p, s, g, tasks):
    step = 0
    for task in tasks:
        row, col = p.coord(task)
        for k in range(p.k_tiles):
            stage, phase = step % p.stages, step // p.stages & 1
            if p.bug != "no_empty_wait":
                s["ab_empty"][stage].wait(phase ^ 1)
            full = s["ab_full"][stage]
            full.expect(0 if p.bug == "no_expect" and step == 3 else s["a"][stage].nbytes + s["b"][stage].nbytes)
            cpu.transfer("load_async", g["A"].window((row, k), s["a"].shape[1:]), s["a"][stage], completes=full)
            cpu.transfer("load_async", g["B"].window((k, col), s["b"].shape[1:]), s["b"][stage], completes=full)
            step += 1


def consumer(p, s, g, tasks, part):
    step = 0
    for turn, _ in enumerate(tasks):
        acc = cpu.Accumulator(p.part_m, p.tile_n)
        for k in range(p.k_tiles):
            stage, phase = step % p.stages, step // p.stages & 1
            if p.bug != "no_full_wait":
                s["ab_full"][stage].wait(0 if p.bug == "stuck_parity" and part == 1 else phase)
            acc.multiply(s["a"][stage, part], s["b"][stage], k > 0, False)
            if p.bug != "arrive_before_mma_wait":
                acc.wait(0)
            if not (p.bug == "lost_arrive" and part == 0 and step == 3):
                s["ab_empty"][stage].arrive()
            step += 1
            if p.bug == "arrive_before_mma_wait":
                acc.wait(1)
        if p.bug != "early_columns":
            acc.wait(0)
        else:
            acc.multiply(s["a"][stage, part], s["b"][stage], True, False)
        if p.bug != "no_c_empty_wait":
            s["c_empty"][0].wait(turn & 1 ^ 1)
        tile = s["c"][part]
        cpu.write(tile, acc.columns(0, p.tile_n))
        if p.bug != "no_fence":
            cpu.fence_async(tile)
        s["c_full"][0].arrive()
        if p.bug == "extra_arrive":
            s["c_full"][0].arrive()


def storer(p, s, g, tasks):
    stores = cpu.current().stores
    for turn, task in enumerate(tasks):
        row, col = p.coord(task)
        s["c_full"][0].wait(turn & 1)
        cpu.transfer("store_async", s["c"], g["C"].window((row, col), (p.tile_m, p.tile_n)))
        if p.bug != "second_store_wait":
            stores.wait(0, "read" if p.bug == "signal_after_read_wait" else "written")
        s["c_empty"][0].arrive()
        if p.bug == "wrong_arriver":
            s["c_full"][0].arrive()
        if not (p.bug == "lost_signal" and g["rank"] == p.world - 1 and task == 1):
            g["ready"].add(task % p.world, task, 1)
    stores.wait(0, "written")


def communicator(p, g, epoch):
    rank, world = g["rank"], p.world
    mine = range(rank, p.tasks, world)
    for task in mine:
        g["ready"].wait(task, epoch * world - (1 if p.bug == "short_wait" else 0))
        row, col = p.coord(task)
        windows = [g["C"].window((row, col), (p.tile_m, p.tile_n), peer) for peer in range(world)]
        total = sum(cpu.read(w).astype(np.float32) for w in windows)
        for w in windows:
            cpu.write(w, total)
    for peer in range(world):
        g["done"].add(peer, 0, 1)
    g["done"].wait(0, epoch * world)


def declare(p, block):
    tiles = dict(a=Tile((p.stages, p.consumers, p.part_m, p.tile_k), p.dtype), b=Tile((p.stages, p.tile_k, p.tile_n), p.dtype),
                 c=Tile((p.consumers, p.part_m, p.tile_n), p.dtype))
    s, at = {}, 1024
    for name, decl in tiles.items():
        s[name] = block.tile(name, at, decl)
        at += decl.nbytes
    for name, n, by, arrivals in (("ab_full", p.stages, "loader", 1), ("ab_empty", p.stages, "consumer", p.consumers),
                                  ("c_full", 1, "consumer", p.consumers), ("c_empty", 1, "storer", 1)):
        s[name] = block.semaphore(name, Semaphore(n, by=by), arrivals)
    return s


def launch(session, p, g, epoch):
    """One call on one rank, from its host task."""
    work = session.launch(g["rank"], "gemm_all_reduce", p.blocks + 1, p.resident)
    for b in range(p.blocks):
        block, tasks = work.block(b), range(b, p.tasks, p.blocks)
        s = declare(p, block)
        work.role(block, Role("loader"), 0, lambda s=s, t=tasks: loader(p, s, g, t))
        for part in range(p.consumers):
            role = Role("consumer", "warpgroup", p.consumers)
            work.role(block, role, part, lambda s=s, t=tasks, part=part: consumer(p, s, g, t, part))
        work.role(block, Role("storer"), 0, lambda s=s, t=tasks: storer(p, s, g, t))
    work.role(work.block(p.blocks), Role("communicator", "warp"), 0, lambda: communicator(p, g, epoch))
    work.wait()


def inputs(p, seed=0):
    """A and B of every rank; small integers, so that every sum is exact in float32."""
    rng = np.random.default_rng(seed)
    dtype = cpu.dtype_of(p.dtype)
    return ([rng.integers(-2, 3, (p.m, p.k)).astype(dtype) for _ in range(p.world)],
            [rng.integers(-2, 3, (p.k, p.n)).astype(dtype) for _ in range(p.world)])


def arrays(p):
    """(C, ready, done) over ranks."""
    return ([np.full((p.m, p.n), np.nan, cpu.dtype_of(p.dtype)) for _ in range(p.world)],
            [np.zeros(p.tasks, np.uint32) for _ in range(p.world)], [np.zeros(1, np.uint32) for _ in range(p.world)])


def world(p, rank, A, B, C, ready, done):
    return dict(rank=rank, A=cpu.Tensor("A", A, rank), B=cpu.Tensor("B", B, rank), C=cpu.Tensor("C", C, rank),
                ready=cpu.Counters("ready", ready, rank), done=cpu.Counters("done", done, rank))


def expected(p, A, B):
    """What C must be: bf16 partial products are rounded before they are summed."""
    dtype = cpu.dtype_of(p.dtype)
    return sum((a.astype(np.float32) @ b.astype(np.float32)).astype(dtype).astype(np.float32) for a, b in zip(A, B)).astype(dtype)


def run(p, **options):
    """`p.calls` calls on every rank with new inputs each, checked. Returns the session."""
    session = cpu.Session(**options)
    C, ready, done = arrays(p)
    data = [inputs(p, call) for call in range(p.calls)]
    wanted = [expected(p, *d) for d in data]

    def main(rank):
        for call, (A, B) in enumerate(data):
            launch(session, p, world(p, rank, A, B, C, ready, done), call + 1)
            found[rank, call] = C[rank].copy()
            if call + 1 < p.calls:
                count[0] += 1
                session.block_host(lambda target=(call + 1) * p.world: count[0] >= target, "the other ranks' call")
    count, found = [0], {}
    for rank in range(p.world):
        session.spawn_host(rank, lambda rank=rank: main(rank))
    session.run()
    for (rank, call), values in found.items():
        assert (values == wanted[call]).all(), f"wrong values on rank {rank}, call {call}"
    return session
