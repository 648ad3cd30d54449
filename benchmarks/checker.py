"""What checking costs, on a CPU: runs of the interpreter with every check on, the memory that they keep, the catalogue of bugs.

    python benchmarks/checker.py                    # prints a line for each, and adds it to --out
    python benchmarks/checker.py --only roles

Times are of one process: elapsed, and of its CPU, which a busy machine does not stretch. The best of three runs counts.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np

from pknumba import GemmAllReduceConfig, World, gemm_all_reduce

ROOT = Path(__file__).resolve().parent.parent


def run(world, shape, config, calls=1, **options):
    """A checked gemm_all_reduce on that many ranks: (elapsed seconds, CPU seconds, session, regions that are kept) of the calls alone."""
    m, n, k = shape
    rng = np.random.default_rng(0)
    A, B = (rng.integers(-2, 3, s).astype(ml_dtypes.bfloat16) for s in ((m, k), (k, n)))
    with World.local(world, executor="interpreter", **options) as ranks:
        def main(rank):
            for _ in range(calls):
                out = gemm_all_reduce(rank, A, B, config=config)
            rank.barrier()
            kept[:] = [sum(len(memory.shadow.cells) for memory in rank.session.memory)]     # while the arrays live
            return out
        kept = []
        start, cpu = time.perf_counter(), time.process_time()
        results = ranks.run(main)
        took = time.perf_counter() - start, time.process_time() - cpu
        expected = (world * (A.astype(np.float32) @ B.astype(np.float32))).astype(ml_dtypes.bfloat16)
        assert all((C == expected).all() for C in results)
        return *took, ranks.session, *kept


def best(**case):
    """The run with the least CPU time of three."""
    return min((run(seed=seed, **case) for seed in range(3)), key=lambda r: r[1])


def roles(shape, world, num_sms, config):
    """How many roles a call has: on each rank 4 and more of every computing block, every warp of the communicating ones."""
    tasks = -(-shape[0] // config.tile_m) * -(-shape[1] // config.tile_n)
    compute = min(tasks, num_sms - config.comm_sms)
    return world * (compute * (2 + config.consumers) + config.comm_sms * 4 * (config.consumers + 1))


def call_512():
    """Full tiles on 4 ranks."""
    case = dict(world=4, shape=(512, 512, 512), config=GemmAllReduceConfig(comm_sms=1), num_sms=3)
    took, cpu, session, kept = best(**case)
    return dict(op="checked gemm_all_reduce", shape=[512, 512, 512], world=4, seconds=took, cpu_seconds=cpu, switches=session.switches,
                accesses=session.accesses, regions=kept, goal="at most 0.4 s")


def many_roles():
    """As many roles as eight ranks have on 13 multiprocessors."""
    shape, config = (1024, 1024, 512), GemmAllReduceConfig(comm_sms=1)
    took, cpu, session, kept = best(world=8, shape=shape, config=config, num_sms=13)
    return dict(op="checked gemm_all_reduce, many roles", shape=list(shape), world=8, roles=roles(shape, 8, 13, config), seconds=took,
                cpu_seconds=cpu, switches=session.switches, accesses=session.accesses, goal="456 roles in at most 4 s")


def memory():
    """Regions that are kept, for more rows and for more calls."""
    config = GemmAllReduceConfig(tile_m=64, tile_n=64, consumers=1, comm_sms=1)
    rows = {m: run(2, (m, 64, 64), config)[3] for m in (256, 512, 1024, 2048)}
    calls = {c: run(2, (512, 64, 64), config, calls=c)[3] for c in (1, 4, 16)}
    per_row = [kept / m for m, kept in rows.items()]
    return dict(op="regions that the checker keeps", shape=[0, 64, 64], world=2, by_rows=rows, by_calls=calls,
                spread_of_regions_per_row=max(per_row) / min(per_row), goal="linear in live regions: constant per row, whatever the calls")


def catalogue():
    """tests/bugs, as every test run has it: two processes."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "tests/bugs"], cwd=ROOT, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stdout
    return dict(op="the catalogue of bugs", bugs=len(list((ROOT / "tests" / "bugs").glob("*.py"))) - 3, seconds=time.perf_counter() - start,
                said=done.stdout.strip().splitlines()[-1], goal="under 2 minutes")


CASES = {"call": call_512, "roles": many_roles, "memory": memory, "catalogue": catalogue}


def main():
    """Run the cases that --only names."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    p.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "checks" / "checker.jsonl")
    args = p.parse_args()
    asked = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    commit = asked.stdout.strip() or "unknown"
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("a") as file:
        for name in args.only:
            line = {k: round(v, 3) if isinstance(v, float) else v for k, v in CASES[name]().items()}
            line |= dict(executor="interpreter", cpus=os.cpu_count(), load=round(os.getloadavg()[0], 1), python=platform.python_version(),
                         numpy=np.__version__, commit=commit, when=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
            file.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
