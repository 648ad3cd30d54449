"""Run a matrix kernel on the interpreter with tiles too small for wgmma, so that a run takes milliseconds.

Data are small integers in float32 precision, so every sum is exact and results are compared with ``==``. Every array lies
inside a larger one full of NaN: what is read beside it spoils the result, what is written beside it is found afterwards.
"""

from pknumba.checking import play, product, product_config
from pknumba.checking.checker import COMPLETIONS, POLICIES
from pknumba.checking.toys import SHAPES


toy = product_config
__all__ = ["toy", "variants", "schedule", "run", "SHAPES", "POLICIES", "COMPLETIONS"]


def variants(kernel, toy=toy):
    """Configurations that differ in all that a role can see: 1 to 3 consumers together or two in turns, both layouts of B, rings."""
    found = []
    for i, (consumers, ping_pong) in enumerate(((2, False), (2, True), (1, False), (3, False))):
        for b_transposed in (True, False):
            for stages in (2, 3, 4):
                found.append(toy(kernel, consumers=consumers, ping_pong=ping_pong, b_transposed=b_transposed, stages=stages,
                                 tile_m=24 if consumers == 3 else 16, c_stages=1 + (i + stages) % 4, group_m=1 + stages % 3))
    return found


def schedule(seed):
    """Options of the session: every policy with every way of completing, in twelve seeds."""
    return dict(seed=seed, policy=POLICIES[seed % 4], completion=COMPLETIONS[seed % 3])


def run(kernel, cfg, world=1, m=40, n=72, k=50, calls=2, sms=4, warps=3, seed=0, skew=0, **options):
    """Call ``kernel`` ``calls`` times, with new values in the same arrays and no barrier between; check every result exactly.

    Args:
        skew: how many steps another rank each time comes late.

    Returns: the session.
    """
    return play(kernel, product(kernel, cfg, m, n, k, sms, warps), world, calls, seed, skew, **options)
