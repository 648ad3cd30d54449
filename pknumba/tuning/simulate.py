"""One call of an operator on the interpreter in virtual time: how long it would take on a card, and what every role does meanwhile."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from ..errors import ConfigError
from ..interpreter import VirtualTime, dtype_of
from ..runtime import World
from .hardware import H200

__all__ = ["simulate", "Simulation", "SIMULATED"]

#: Products, and what a rank's A holds: "whole" rows, or its share of them; then the collectives of an array of m x n.
_PRODUCTS = {"gemm": "whole", "gemm_all_reduce": "whole", "gemm_reduce_scatter": "whole", "all_gather_gemm": "share"}
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
SIMULATED = (*_PRODUCTS, *_COLLECTIVES)


@dataclass(frozen=True)
class Simulation:
    """What came of it.

    Attributes:
        seconds: from the launch to the end of the last role. events: (interpreter) Events in nanoseconds, or None.
        time: the VirtualTime, which knows how busy everything was. switches: of the interpreter.
    """

    seconds: float
    events: object
    time: object
    switches: int

    def busiest(self, count=5):
        """[(kind of server, share of the time that the busiest of its kind worked)], most busy first."""
        best = {}
        for (kind, *_), seconds in self.time.busy.items():
            best[kind] = max(best.get(kind, 0.0), seconds / self.seconds)
        return sorted(best.items(), key=lambda item: -item[1])[:count]


def call_of(world, op, m, n, k, config=None, dtype="bfloat16"):
    """function () that calls an operator of ``SIMULATED`` on arrays of this rank (zeros)."""
    import pknumba
    function = getattr(pknumba, op)
    if op in _COLLECTIVES:
        return partial(function, world, world.symmetric((m, n), dtype), config=config)
    gathered = _PRODUCTS[op] == "share"
    rows = len(np.array_split(range(m), world.size)[world.rank]) if gathered else m
    A, B = (world.asarray(np.zeros(shape, dtype_of(dtype))) for shape in ((rows, k), (k, n)))
    out = world.symmetric((m, n), dtype) if op == "gemm_all_reduce" else None
    return partial(function, world, A, B, out=out, config=config, **({"rows": m} if gathered else {}))


def simulate(op, m=0, n=0, k=0, world=1, *, hardware=H200, num_sms=None, ranks_per_card=1, config=None, dtype="bfloat16", values=False,
             trace=False, limit=None):
    """The Simulation of one call.

    Args:
        op: one of ``SIMULATED``, or a function main(world) that every rank runs, which may call anything. m, n, k: of the whole product
            (or of a rank's m x n array), for an operator. world: number of ranks.
        hardware: the cards. ranks_per_card: ranks that share one. num_sms: SMs of a rank; its part of the card by default.
        config: of the operator; chosen by itself by default. values: compute them too (slow; results are not looked at).
        trace: keep the events. limit: HangError after so many switches of the interpreter.

    Raises ConfigError for an operator that cannot be simulated, and whatever the operator raises.
    """
    if not callable(op) and op not in SIMULATED:
        raise ConfigError(f"simulate: no operator {op!r}. It knows {', '.join(SIMULATED)}. Use one of these.", op=op)
    time = VirtualTime(hardware, ranks_per_card, values)
    sms = num_sms or max(1, int(hardware.sms) // min(ranks_per_card, world))
    ranks = World.local(world, executor="interpreter", num_sms=sms, races=False, time=time, trace=trace, max_switches=limit)
    kept = {}

    def main(w):
        kept["session"] = w.session
        (partial(op, w) if callable(op) else call_of(w, op, m, n, k, config, dtype))()
    ranks.run(main)
    return Simulation(time.now, kept["session"].events, time, kept["session"].switches)
