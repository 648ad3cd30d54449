"""Arrays change hands without a copy: NumPy, CuPy and torch give theirs to operators and take symmetric memory, by DLPack.

What is looked at: a view of symmetric memory has the memory's own address; what one side writes the other reads; a view keeps the
array alive after its name is gone; an operator takes an array that has nothing but ``__dlpack__``. Exit status 1 if one does not hold.

    python scripts/exchange.py --world 2                # every library that is installed and works where the world works
"""

import argparse
import gc
import sys
import weakref

import numpy as np
from launch import FIRST, LAUNCHED, Parser, at_least, guarded, on_every_rank, open_world, to_numpy

from pknumba import all_reduce, gemm


class Nameless:
    """An array of some library that shows nothing but DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def libraries():
    """{name: module} of the libraries of GPU arrays that are installed. They are loaded before the world is made, so that ranks in one
    process each have them on a stream of their own."""
    found = {}
    for name in ("cupy", "torch"):
        try:
            found[name] = __import__(name)
        except ImportError:
            pass
    return found


def address(array):
    """Where its first element lies."""
    if hasattr(array, "data_ptr"):
        return array.data_ptr()
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def exchange(world, name, module):
    """What holds of one library: {fact: bool}."""
    shared = world.symmetric((8, 16), "float32")
    view, place = module.from_dlpack(shared), shared.pointer
    facts = {"a view has the memory's address": address(view) == place}
    view[...] = world.rank + 1
    world.synchronize()
    world.barrier()
    facts["what it writes is there"] = bool((to_numpy(shared) == world.rank + 1).all())
    total = world.size * (world.size + 1) // 2
    result = all_reduce(world, shared)
    world.synchronize()
    facts["operators read it"] = bool((to_numpy(result) == total).all())
    alive, local = weakref.ref(shared), shared.local
    facts["two views are one memory"] = address(module.from_dlpack(local) if hasattr(local, "__dlpack__") else local) == place
    world.barrier()
    del shared, local, result
    gc.collect()
    facts["a view keeps its memory"] = bool((to_numpy(view) == world.rank + 1).all())
    if world.executor == "gpu":
        facts["a view keeps its array"] = alive() is not None
        A = world.asarray(np.full((16, 32), 0.5, np.float16))
        B = world.asarray(np.full((32, 24), 2, np.float16))
        out = gemm(world, Nameless(A), Nameless(B))
        world.synchronize()
        facts["an operator takes what has only DLPack"] = bool((to_numpy(out) == 32).all())
    del view
    gc.collect()
    return facts


def run(world, installed):
    """One rank's part: {library: {fact: bool}}."""
    modules = {"numpy": np} if world.executor == "interpreter" else installed
    return {name: exchange(world, name, module) for name, module in modules.items()}


def main():
    """Exchange and judge. Returns the exit status."""
    p = Parser(prog="exchange.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("--world", type=at_least(1), help="ranks in this process, without mpirun (2)")
    p.add_argument("--executor", choices=["auto", "gpu", "interpreter"], default="auto")
    args = p.parse_args()
    installed = {} if args.executor == "interpreter" else libraries()
    world = open_world(args.world or LAUNCHED or 2, args.executor)
    with world:
        everyone = on_every_rank(world, run, installed)
    held = True
    for name in everyone[0]:
        wrong = [fact for found in everyone for fact, holds in found[name].items() if not holds]
        held = held and not wrong
        if FIRST:
            print(f"exchange: {name}, {world.size} ranks, {world.executor}: "
                  + (f"FAIL: {'; '.join(dict.fromkeys(wrong))}" if wrong else f"{len(everyone[0][name])} facts hold: PASS"))
    return 0 if held and everyone[0] else 1


if __name__ == "__main__":
    sys.exit(guarded("exchange.py", main))
