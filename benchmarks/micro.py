"""The paper's microbenchmarks: bandwidth between ranks by mechanism, message, size and number of SMs; latencies of hand-overs.

    mpirun -n 2 python benchmarks/micro.py                   two GPUs
    ./scripts/mps run -n 2 python benchmarks/micro.py        two ranks that share a GPU: its memory instead of a link
    python benchmarks/micro_table.py                         Markdown of the newest lines, beside the paper's numbers; needs no GPU

Every rank sends to the next one, all at once; a rate is the bytes that one rank sends over the time of the slowest. One JSON line holds a
sweep: ``points`` are [x, microseconds, GB/s].
"""

import sys
from functools import partial

import protocol

#: What is moved in a sweep, and the transfer sizes.
TOTAL = 256 << 20
SIZES = [2 << (10 + 2 * i) for i in range(9)] + [TOTAL]
MESSAGES = [2, 8, 32, 96, 192]                      # KiB of a bulk copy
SMS = (1, 2, 4, 8, 15, 16, 32, 64, 76, 132)


class Bench:
    """What every case needs: the world, two arrays of random bytes, how to time and report."""

    def __init__(self, world, arguments):
        import torch
        self.world, self.arguments, self.torch, self.rounds = world, arguments, torch, arguments.rounds
        self.gpus = len(set(world.allgather(world.device)))
        self.side, self.other = torch.cuda.Stream(), torch.empty(TOTAL // 4, dtype=torch.int32, device="cuda")
        self.rows = 2 * TOTAL // 128 + 2048
        self.array = world.symmetric((self.rows, 64))
        self.mine = protocol.as_torch(self.array.local)
        self.next, self.before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
        self.sms = [n for n in SMS if n < world.num_sms] + [world.num_sms]
        self.refill()

    def refill(self):
        """Small integers that differ from rank to rank."""
        source = self.torch.Generator("cuda").manual_seed(self.world.rank)
        self.mine.copy_(self.torch.randint(1, 9, self.mine.shape, device="cuda", generator=source, dtype=self.torch.int16))
        self.settle()

    def settle(self):
        """Everything so far has happened, on every rank."""
        self.world.synchronize()
        self.torch.cuda.synchronize()
        self.world.barrier()

    def theirs(self, rows):
        """The first rows of the rank that sends to this one."""
        return protocol.as_torch(self.array.peer(self.before))[:rows]

    def timed(self, call, batch=4, rounds=None, flush=False):
        """Microseconds of a call (stream) on the slowest rank, a number for each round; ``batch`` calls are one graph.

        flush: before each round the L2 is filled with something else.
        """
        torch, events, graph = self.torch, [], self.torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.side):
            call(self.side.cuda_stream)
            self.settle()
            with torch.cuda.graph(graph, stream=self.side, capture_error_mode="thread_local"):
                for _ in range(batch):
                    call(self.side.cuda_stream)
            graph.replay()
            for _ in range(rounds or self.rounds):
                if flush:
                    self.other.zero_()
                self.settle()
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                graph.replay()
                end.record()
                events.append((start, end))
            torch.cuda.synchronize()
        each = self.world.allgather([a.elapsed_time(b) * 1e3 / batch for a, b in events])
        return list(map(max, zip(*each)))

    def probe(self, kernel, cfg, pieces, span, peer=None):
        """A call (stream) that fires a probe."""
        from probes import probe
        found = probe(kernel, self.world, self.array, cfg, pieces, span, self.next if peer is None else peer)
        self.world.barrier()
        return found.fire

    def sure(self, right, what):
        """Stop, on every rank, if a result is wrong."""
        assert all(self.world.allgather(bool(right))), f"micro: {what}: wrong result"

    def report(self, name, x, points, times, **more):
        """Rank 0 writes the line of a sweep: points are (x, microseconds, bytes)."""
        if self.world.rank == 0:
            told = [[n, round(us, 2), round(moved / us * 1e-3, 1)] for n, us, moved in points]
            size = self.world.size
            protocol.write(self.arguments.out, f"micro: {name}", [size], "bfloat16", times, world=size, gpus=self.gpus, layout=x,
                           points=told, num_sms=self.world.num_sms, config=None, **more)
            print("   ", x, " ".join(f"{n}: {rate}" for n, _, rate in told), flush=True)


def chunked(kib, sms):
    """A ProbeConfig for messages of so many KiB: as many workers as shared memory holds, at most 12."""
    from probes import ProbeConfig
    boxes, rows = (kib // 32, 256) if kib > 32 else (1, kib * 8)
    return ProbeConfig(rows=rows, boxes=boxes, workers=max(1, min(12, 200 // kib)), comm_sms=sms)


def sweep(bench, name, kernel, x, cases, check=None):
    """Time a probe over cases (x, config, bytes that a rank moves, bytes of memory that they are)."""
    points = []
    for n, cfg, moved, extent in cases:
        chunk = cfg.chunk * 128
        call = bench.probe(kernel, cfg, max(1, moved // chunk), max(1, extent // chunk))
        if check and n == cases[0][0]:
            call(bench.side.cuda_stream)
            bench.settle()
            bench.sure(check(cfg.chunk), name)
        times = bench.timed(call)
        points.append((n, protocol.summary(times)[0], moved))
    bench.report(name, x, points, times)


def bulk(bench):
    """Bulk copies: stores, adding stores and copies, by SMs, by message and by size."""
    from probes import Add, Copy, Pull, Store
    whole = bench.world.num_sms

    def stored(rows):
        return bench.torch.equal(bench.mine[rows:2 * rows], bench.theirs(rows))

    for name, kernel, check in (("tma store", Store, stored), ("tma add", Add, None)):
        sweep(bench, name, kernel, "SMs", [(c, chunked(32, c), TOTAL, TOTAL) for c in bench.sms], check)
        sweep(bench, name, kernel, "KiB of a message", [(k, chunked(k, whole), TOTAL, TOTAL) for k in MESSAGES])
        bench.refill()
    sizes = [(s, chunked(min(32, s >> 10), min(whole, max(1, s >> 15))), s, s) for s in SIZES]
    sweep(bench, "tma store", Store, "bytes", sizes)
    bench.refill()
    for name, kernel in (("tma copy", Copy), ("tma pull", Pull)):
        sweep(bench, name, kernel, "SMs", [(c, chunked(32, c), TOTAL, TOTAL) for c in bench.sms])
    sweep(bench, "tma pull", Pull, "KiB of a message", [(k, chunked(k, whole), TOTAL, TOTAL) for k in MESSAGES])


def loads(bench):
    """Bulk loads of what lies in the L2, and of what does not."""
    from probes import Load
    for name, extent, times in (("tma load, L2", 8 << 20, 8), ("tma load, memory", TOTAL, 2)):
        sweep(bench, name, Load, "SMs", [(c, chunked(16, c), times * TOTAL, extent) for c in bench.sms])


def registers(bench):
    """Loads and stores of lanes: from the next rank, and sums over ranks."""
    import pknumba
    from pknumba import CommConfig
    world, torch = bench.world, bench.torch
    pairs = [(r, (r + 1) % world.size) for r in range(world.size)]
    out = torch.empty(TOTAL // 2, dtype=torch.bfloat16, device="cuda")
    for name, kind, cases in (("register copy", "SMs", [(c, TOTAL, c) for c in bench.sms]), ("register copy", "bytes",
                              [(s, s, 0) for s in SIZES])):
        points = []
        for n, size, blocks in cases:
            with world.symmetric((size // 2,)) as x:
                protocol.as_torch(x.local).fill_(world.rank + 1)
                config = CommConfig(blocks=blocks, unroll=8) if blocks else None
                call = partial(pknumba.send_recv, world, x, pairs, out=out[:size // 2], config=config)
                times = bench.timed(lambda stream, call=call: call(stream=stream))
                bench.sure((out[:size // 2] == bench.before + 1).all(), name)
            points.append((n, protocol.summary(times)[0], size))
        bench.report(name, kind, points, times)
    x = world.symmetric((TOTAL // 2,))
    protocol.as_torch(x.local).fill_(world.rank + 1)
    share, points = torch.empty(TOTAL // 2 // world.size, dtype=torch.bfloat16, device="cuda"), []
    for c in bench.sms:
        call = partial(pknumba.reduce_scatter, world, x, out=share, config=CommConfig(blocks=c, unroll=2))
        times = bench.timed(lambda stream, call=call: call(stream=stream))
        bench.sure((share == world.size * (world.size + 1) // 2).all(), "register sum")
        points.append((c, protocol.summary(times)[0], TOTAL))
    bench.report("register sum", "SMs", points, times)
    x.close()


def engine(bench):
    """What the driver's copies reach: the copy engine between GPUs."""
    points, half = [], TOTAL // 128
    there = protocol.as_torch(bench.array.peer(bench.next))
    for size in SIZES:
        rows = size // 128
        times = bench.timed(lambda stream, rows=rows: there[half:half + rows].copy_(bench.mine[:rows]))
        points.append((size, protocol.summary(times)[0], size))
    bench.settle()
    bench.sure(bench.torch.equal(bench.mine[half:half + 64], bench.theirs(64)), "copy engine")
    bench.report("copy engine" if bench.gpus > 1 else "driver's copy on one GPU", "bytes", points, times)


def latencies(bench, turns=2000):
    """Nanoseconds of one hand-over or one access."""
    from probes import Arrive, Hop, Load, ProbeConfig, Written
    world, own = bench.world, bench.world.rank
    one = ProbeConfig(rows=16, workers=1)
    cases = {"mbarrier": (Arrive, ProbeConfig(rows=16, workers=2), 1, own, 2), "through memory": (Hop, one.replace(comm_sms=2), 1, own, 2),
             "between ranks": (Hop, one, 1, 1 - own if own < 2 else own, 2), "bulk load, L2": (Load, one, 64, own, 1),
             "bulk load, memory": (Load, one, TOTAL // 2048, own, 1), "bulk store written, own": (Written, one, 64, own, 1),
             "bulk store written, peer": (Written, one, 64, bench.next, 1)}
    for name, (kernel, cfg, span, peer, trips) in cases.items():
        if kernel is Hop and peer == own and cfg.comm_sms < 2:
            cfg = cfg.replace(comm_sms=2)           # ranks beyond the first two play among themselves
        times = bench.timed(bench.probe(kernel, cfg, turns, span, peer), batch=1, rounds=10, flush="memory" in name)
        each = protocol.summary(times)[0] * 1e3 / turns / trips
        if world.rank == 0:
            protocol.write(bench.arguments.out, f"micro: latency {name}", [turns], "bfloat16", times, world=world.size, gpus=bench.gpus,
                           nanoseconds=round(each, 1), config=None)
            print(f"    {each:.0f} ns", flush=True)


CASES = {"latency": latencies, "bulk": bulk, "loads": loads, "registers": registers, "engine": engine}


def cases(world, arguments, budget):
    """Run the cases that the flags name, as far as the budget goes. Always true: a wrong result is an error."""
    bench = Bench(world, arguments)
    bench.rounds = min(arguments.rounds, 8)
    for name, case in CASES.items():
        if arguments.only in name and not any(world.allgather(budget.spent(name))):
            case(bench)
    bench.array.close()
    return True


def main():
    """Run the cases that the flags name. Returns the exit status."""
    arguments = protocol.options(__doc__, "micro.jsonl").parse_args()
    import torch

    from pknumba import World
    with World.mpi(executor="gpu", host_limit_s=120) as world:
        if world.size < 2:
            print("micro: one rank. It measures between ranks. Start two or more with mpirun, or ./scripts/mps.", file=sys.stderr)
            return 2
        torch.cuda.set_device(world.device)
        cases(world, arguments, protocol.Budget(arguments.budget))
    return 0


if __name__ == "__main__":
    sys.exit(main())
