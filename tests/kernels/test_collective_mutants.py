"""Every line of the collectives and of the handshake around them matters: without it, or with it bent, the interpreter notices."""

import importlib
import inspect

import numpy as np
import pytest

from pknumba import kernels
from pknumba.templates import comm, communicate

from .astray import survivors
from .collectives import KINDS, TOY, play
from .harness import schedule
from .definitions import DEFINITIONS

TRIES = 12


def all_reduce(algorithm):
    """A try of the kernel, with every combination of arrays, several calls, ranks late in turn; every other time another kernel uses the
    same memory next."""
    def run(kernel, n):
        kinds, config = (KINDS[n % 2], ("none", *KINDS)[n // 2 % 3]), TOY.replace(algorithm=algorithm)

        def call(world, x, out):
            result = communicate(kernel, world, x, out, config, None, op="sum")
            if n % 2 == 0:
                kernels.reduce_scatter(world, np.zeros(world.size * 350, np.float32), config=TOY.replace(algorithm="two-shot"))
            return result
        play(2 + n % 3 // 2, call, DEFINITIONS["all_reduce"], (720,), kinds=kinds, skew=40, calls=3, max_switches=200_000, **schedule(n))
    return run


def collective(name, algorithm="two-shot", **arguments):
    """A try of another collective; arguments may be functions of the number of ranks."""
    definition = DEFINITIONS[name]

    def run(kernel, n):
        to_results = algorithm == "push" and name != "reduce_scatter"
        size, kinds = 2 + n % 2, (KINDS[n % 2], "symmetric" if to_results else ("none", *KINDS)[n // 2 % 3])
        shape = (2 * size, 1, 152)
        given = {k: v(size) if callable(v) else v for k, v in arguments.items()}
        wanted = [definition([np.zeros(shape)] * size, r, **given) for r in range(size)]
        play(size, lambda world, x, out: communicate(kernel, world, x, out, TOY.replace(algorithm=algorithm), None, **given),
             lambda xs, r: definition(xs, r, **given), shape, next(w.shape for w in wanted if w is not None), kinds=kinds, skew=40, calls=3,
             max_switches=200_000, **schedule(n))
    return run


def ragged(kernel, n):
    """A try of all_to_all with uneven splits."""
    size = 2 + n % 2
    splits = (1, 4) if size == 2 else (2, 0, 3)
    bounds = np.cumsum(splits[:-1])
    arguments = dict(scatter_axis=0, gather_axis=1, scatter_splits=splits, gather_splits=None)
    definition = lambda xs, r: np.concatenate([np.split(x, bounds)[r] for x in xs], 1)      # noqa: E731
    play(size, lambda world, x, out: communicate(kernel, world, x, out, TOY, None, **arguments), definition, (5, 2, 152), None,
         skew=40, calls=3, max_switches=200_000, **schedule(n))


#: Class that is mutated -> (its module, the kernel that is called, function (kernel, n) that plays the n-th try, mutants at least).
KERNELS = {"AllReduce": ("all_reduce", "AllReduce", all_reduce("two-shot"), 7),
           "ReadBack": ("all_reduce", "AllReduce", all_reduce("read-back"), 4),
           "AllReducePush": ("all_reduce", "AllReduce", all_reduce("push"), 9),
           "OneShot": ("all_reduce", "AllReduce", all_reduce("one-shot"), 6),
           "AllGather": ("all_gather", "AllGather", collective("all_gather", axis=0), 4),
           "ReduceScatter": ("reduce_scatter", "ReduceScatter", collective("reduce_scatter", op="sum", axis=0), 3),
           "AllToAll": ("all_to_all", "AllToAll", collective("all_to_all", scatter_axis=0, gather_axis=2), 2),
           "AllGatherPush": ("all_gather", "AllGather", collective("all_gather", "push", axis=0), 3),
           "ReduceScatterPush": ("reduce_scatter", "ReduceScatter", collective("reduce_scatter", "push", op="sum", axis=0), 7),
           "AllToAllPush": ("all_to_all", "AllToAll", collective("all_to_all", "push", scatter_axis=0, gather_axis=2), 5),
           "AllGatherParcels": ("all_gather", "AllGather", collective("all_gather", "one-shot", axis=0), 4),
           "ReduceScatterParcels": ("reduce_scatter", "ReduceScatter", collective("reduce_scatter", "one-shot", op="sum", axis=0), 6),
           "AllToAllParcels": ("all_to_all", "AllToAll", collective("all_to_all", "one-shot", scatter_axis=0, gather_axis=2), 6),
           "AllToAllRagged": ("all_to_all", "AllToAllRagged", ragged, 6),
           "Broadcast": ("broadcast", "Broadcast", collective("broadcast", root=1), 5),
           "Reduce": ("reduce", "Reduce", collective("reduce", op="sum", root=1), 2),
           "Gather": ("gather", "Gather", collective("gather", root=1, axis=0), 4),
           "Scatter": ("scatter", "Scatter", collective("scatter", root=1, axis=0), 5),
           "SendRecv": ("send_recv", "SendRecv", collective("send_recv", pairs=lambda n: tuple((r, (r + 1) % n) for r in range(n))), 3)}

#: Mutants that only change the order of sums, which those of integers do not show: ``test_push.test_order`` does.
IN_ORDER = dict.fromkeys(("AllReducePush", "ReduceScatterPush"), "copy_box: g.rank is the next rank")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", KERNELS)
def test_every_mutant_of_a_kernel_is_noticed(name):
    home, public, run, least = KERNELS[name]
    module = importlib.import_module(f"{kernels.__name__}.{home}")
    alive, count = survivors(module, name, lambda m: getattr(m, public), run, TRIES)
    alive = [text for text in alive if not text.endswith(IN_ORDER.get(name, "no such text"))]
    assert not alive, "\n".join(alive)
    assert count >= least


@pytest.mark.timeout(600)
@pytest.mark.parametrize("driver, algorithm", [("exchange", "two-shot"), ("exchange", "read-back"), ("exchange", "push"),
                                               ("counted", "one-shot")])
def test_every_mutant_of_the_handshake_is_noticed(driver, algorithm):
    home = importlib.import_module(f"{kernels.__name__}.all_reduce")
    chosen = {"two-shot": home.AllReduce, "read-back": home.ReadBack, "push": home.AllReducePush, "one-shot": home.OneShot}[algorithm]

    def make(module):
        drive = getattr(module, driver)

        class Driven(chosen):
            @classmethod
            def variant(kernel, call, cfg):
                if algorithm == "push":
                    kernel.prepare(call)
                return kernel, cfg

            @classmethod
            def form(kernel, size, shape, op):
                return home.AllReduce.form(size, shape, op)

            @classmethod
            def driver(kernel, role):
                return lambda play, _: drive(kernel, play)
        return Driven

    alive, count = survivors(comm, driver, make, all_reduce(algorithm), TRIES)
    source, first = inspect.getsourcelines(comm.exchange)
    place = {text: first + max(i for i, line in enumerate(source) if line.strip() == text) for text in ("if again:", "if cfg.copy_out:")}
    place["communicate"] = first + next(i for i, line in enumerate(source) if "communicate(cfg" in line) - 1
    enters = first + next(i for i, line in enumerate(source) if line.strip() == "if cfg.copy_in:")
    lines = {text: int(text.split()[1].rstrip(":")) for text in alive}
    if algorithm == "two-shot":                 # does not meet again
        alive = [text for text in alive if lines[text] < place["if again:"]]
    if algorithm == "read-back":                # has nothing to copy once more
        alive = [text for text in alive if lines[text] < place["if cfg.copy_out:"]]
    if algorithm == "push":                     # copies nothing before, and does not meet before
        alive = [text for text in alive if not enters <= lines[text] < place["communicate"]]
    else:
        alive = [text for text in alive if "tick" not in text]
    assert not alive, "\n".join(alive)
    assert count >= (3 if driver == "counted" else 13)
