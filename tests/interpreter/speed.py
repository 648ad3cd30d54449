"""How long the GEMM + all-reduce of the tests takes: ``python -m tests.interpreter.speed``."""

import time

from . import gemm_all_reduce as kernel


def measure(p, **options):
    best = None
    for seed in range(3):
        start = time.perf_counter()
        session = kernel.run(p, seed=seed, **options)
        took = time.perf_counter() - start
        best = min(best or took, took)
    return best, session


if __name__ == "__main__":
    large = kernel.Problem()
    for options in (dict(races=False, policy="fifo", completion="eager"), dict(races=False), dict(), dict(completion="late"),
                    dict(policy="pct"), dict(policy="starve")):
        took, session = measure(large, **options)
        print(f"{str(options):60s} {took * 1e3:6.0f} ms with inputs and check; {session.switches} switches, "
              f"{session.operations} operations, {session.accesses} accesses, {session.components.count} clock components")
