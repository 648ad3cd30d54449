"""Operators that multiply and communicate, against torch.matmul and NCCL one after the other; one GPU for each rank.

    mpirun -n 2 python benchmarks/against_nccl.py

Both run in one process per rank, interleaved, and are timed over calls in a row with CUDA events, short ones replayed from CUDA graphs
(``eager_us`` is what they take with the host's time); a line holds the maximum over ranks. NVLink multicast stays off in NCCL.
"""

import os
import sys
from functools import partial
from itertools import product
from math import prod
from types import SimpleNamespace

import ahead
import protocol
import torch
from fused import FUSED
from ranks import beside_nccl, guarded, medians_of, pace, timed, worst_of
from rivals import capturable, trial

from pknumba import GemmConfig, gemm
from pknumba.config import best

SHAPES = [(8192, 8192, 4096), (4096, 4096, 2048), (2048, 2048, 1024), (16384, 16384, 8192)]
#: Communicating SMs that are tried, beside the configuration that a call chooses; and, with --tiles, tiles of SMs that do both.
COMM_SMS = (4, 8, 16, 24)
_USUAL = dict(tile_m=128, tile_n=192, stages=4, c_stages=3, ping_pong=True)
_WIDE = dict(tile_m=128, tile_n=256, stages=4, c_stages=2)
TILES = {"within SMs, tiles 128 x 192": _USUAL, "within SMs, tiles 128 x 256": _WIDE,
         "within SMs, 64 rows at once": dict(_USUAL, pace_m=64), "within SMs, 32 rows at once": dict(_USUAL, pace_m=32),
         **{f"within SMs, {rows} rows of a shard at once": dict(_USUAL, written=True, chunk_m=rows) for rows in (64, 32, 16)},
         "within SMs, tiles 128 x 256, 32 rows of a shard at once": dict(_WIDE, written=True, chunk_m=32)}


def error(world, op, config):
    """Largest relative error over the ranks of one call; NaN stays NaN."""
    op.ours(config)
    world.synchronize()
    torch.cuda.synchronize()
    return worst_of(world, op.error(op.found()))


def configurations(world, op, shape, comm_sms, tiles):
    """{name: configuration} of an operator: so many communicating SMs each, where it may have some; ``tiles`` of SMs that do both; None:
    what a call chooses."""
    m, n, k = shape
    known = op.make_config({}, None)
    some = comm_sms if hasattr(known, "comm_sms") else ()
    configs = {f"{c} comm SMs": op.make_config(vars(best(m, n, k, world.num_sms - c, GemmConfig(), plain=True)), c) for c in some}
    configs |= {name: op.make_config(tile, None) for name, tile in tiles.items() if all(hasattr(known, field) for field in tile)}
    return {**configs, "chosen": None}


def tiles_of(args):
    """Tiles that the flags ask for: kernels of all of them take a minute to compile."""
    return TILES if args.tiles else {}


def kernels(shapes, ops, comm_sms, tiles):
    """What ``cases`` calls, as ``ahead`` compiles it; not gemm_all_to_all, whose kernel follows from the axes."""
    world, size = SimpleNamespace(num_sms=132), int(os.environ.get("OMPI_COMM_WORLD_SIZE", "2"))
    for shape, op in product(shapes, [op for op in ops if op != "gemm_all_to_all"]):
        bare = FUSED[op].__new__(FUSED[op])                             # without its arrays
        for cfg in configurations(world, bare, shape, comm_sms, tiles).values():
            yield ahead.job(bare.config.removesuffix("Config"), cfg or best(*shape, world.num_sms, bare.make_config({}, None), size))
    yield from (ahead.job("Gemm", best(*shape, world.num_sms, GemmConfig())) for shape in shapes)


def case(world, kind, shape, args, comm_sms, tiles, others=None):
    """Check and time one operator on one shape; rank 0 writes a line for the best configuration of those tried, against each rival.

    Args:
        comm_sms, tiles: what is tried, as of ``configurations``.
        others: function (op) -> {name: make} of further rivals, as ``rivals.trial`` takes them; None: the product alone runs along instead.
    """
    (m, n, k), short = shape, 2 * prod(shape) / 600e12 < protocol.SHORT
    op = kind(world, shape)
    configs = configurations(world, op, shape, comm_sms, tiles)
    worst = max(error(world, op, config) for config in configs.values())
    if not worst < op.limit:
        print(f"WRONG {op.name} {shape}: relative error {worst:.2e}", flush=True)
        return False
    makes = others(op) if others else {}
    tried = {name: trial(world, name, make, op.error, op.limit) for name, make in makes.items()}
    op.expected = None
    ours = {name: partial(op.ours, config) for name, config in configs.items()}
    if others:
        plain = {name: rival for name, (rival, _) in tried.items() if rival}
    else:
        whole = torch.randn(m, k, device="cuda").bfloat16()
        C, E = (torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        plain = {"gemm": lambda: gemm(world, whole, op.B, out=C), "cublas": lambda: torch.matmul(whole, op.B, out=E)}
    variants = {"theirs": op.theirs, **ours, **plain}
    calls, rounds = pace(world, variants, args.seconds, args.rounds)
    graphs = short and all([capturable(world, name, rival) for name, (rival, _) in tried.items() if rival])
    times, how, eager = timed(world, variants, rounds, calls, graphs, args.pause)
    if world.rank == 0:
        written(world, op, shape, args, times, configs, worst, tried, dict(how=how, calls=calls, **eager))
    op.close()
    return True


def written(world, op, shape, args, times, configs, worst, tried, more):
    """Write the lines of one case."""
    m, n, k = shape
    medians = medians_of(times)
    chosen = min(configs, key=medians.get)
    config = configs[chosen] or best(m, n, k, world.num_sms, op.make_config({}, None), world.size)
    same = dict(world=world.size, gpus=world.size, pause_s=args.pause, **more)
    write = partial(protocol.write, args.out, op.name, shape, "bfloat16", times[chosen])
    more = dict(same, config=vars(config), medians_us=medians, tflops=round(op.flops(shape) / medians[chosen] * 1e-6, 1))
    write(op.rival, times["theirs"], worst, **more)
    for name, (_, why) in tried.items():
        write(name, times.get(name), worst, **more, **({"not_run": why} if why else {}))
    if "gemm" in times:
        protocol.write(args.out, "gemm", shape, "bfloat16", times["gemm"], "cublas (torch.matmul)", times["cublas"], None,
                       tflops=round(2 * m * n * k / medians["gemm"] * 1e-6, 1), **same)
    print("   ", {name: round(t, 1) for name, t in medians.items()}, flush=True)


def cases(world, args, budget, shapes=SHAPES, comm_sms=None, others=None):
    """Every operator on every shape that the flags name. Returns whether all were right.

    Args:
        comm_sms: as the flags say if None. others: as in ``case``, of which operators have some.
    """
    right, numbers, tiles = True, args.comm_sms if comm_sms is None else comm_sms, tiles_of(args)
    for shape, op in product(shapes, args.ops):
        name = f"{op} {'x'.join(map(str, shape))}"
        if args.only in name and (not others or op in others.operators):
            right &= guarded(world, name, budget, partial(case, world, FUSED[op], shape, args, numbers, tiles, others))
    return right


def flags(p):
    """Add the flags of fused operators to a parser."""
    p.add_argument("--ops", nargs="+", choices=FUSED, default=list(FUSED))
    p.add_argument("--pause", type=float, default=0.0, help="seconds that cards rest before each timed batch of fused operators")
    p.add_argument("--comm-sms", nargs="*", type=int, default=COMM_SMS, help="numbers of communicating SMs to try")
    p.add_argument("--tiles", action="store_true", help="try other tiles of SMs that do both, too: a minute more to compile")
    p.add_argument("--seconds", type=float, default=4.0, help="for the timed rounds of a case of fused operators, about")


def main():
    """Run the shapes that the flags name. Returns the exit status."""
    p = protocol.options(__doc__, "multigpu.jsonl")
    flags(p)
    args = p.parse_args()
    wanted = [shape for shape in SHAPES if any(args.only in f"{op} {'x'.join(map(str, shape))}" for op in args.ops)]
    ahead_of_it = kernels(wanted, args.ops, args.comm_sms, tiles_of(args))
    return beside_nccl(lambda world: cases(world, args, protocol.Budget(args.budget)), ahead_of_it)


if __name__ == "__main__":
    sys.exit(main())
