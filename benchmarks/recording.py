"""What recording a timeline costs: a GEMM as usual, one whose roles record tasks, and one that records waits too, interleaved in one run.

    python benchmarks/recording.py
"""

import os
import sys

import protocol
import torch

from pknumba import World, gemm

SHAPES = [(4096, 4096, 4096), (8192, 8192, 1024), (2048, 2048, 2048)]


def world_that(records):
    """A world whose kernels record tasks ("1"), waits too ("waits") or nothing ("0"), as the environment says at their first call."""
    os.environ["PKNUMBA_TIMELINE"] = records
    return World.local(1, executor="gpu")


def case(shape, args):
    """Time one shape each way; writes its lines."""
    (m, n, k), est = shape, 2 * shape[0] * shape[1] * shape[2] / 600e12
    A, B = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(k, n, device="cuda").bfloat16()
    outs, variants, worlds = {}, {}, {}
    for name, records in (("recorded", "1"), ("waits", "waits"), ("usual", "0")):
        world = worlds[name] = world_that(records)
        outs[name] = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        variants[name] = [lambda world=world, C=outs[name]: gemm(world, A, B, out=C)]
        variants[name][0]()
        world.synchronize()
    same = all(torch.equal(out, outs["usual"]) for out in outs.values())
    intervals = len(worlds["recorded"].intervals.read())
    if not same or not intervals:
        print(f"WRONG {shape}: results {'agree' if same else 'differ'}, {intervals} intervals")
        return False
    times, how = protocol.interleaved(variants, est, rounds=args.rounds)
    for name, told in (("recorded", "gemm that records its timeline"), ("waits", "gemm that records its timeline and waits")):
        protocol.write(args.out, told, shape, "bfloat16", times[name], "pknumba gemm", times["usual"], how=how,
                       intervals=len(worlds[name].intervals.read()))
    return True


def main():
    """Run. Returns the exit status."""
    args = protocol.options(__doc__, "recording.jsonl").parse_args()
    return 0 if all([case(shape, args) for shape in SHAPES]) else 1


if __name__ == "__main__":
    sys.exit(main())
