"""Runs the small kernels of the catalogue: a file is a kernel, its wrong line stands above the right one.

A file says ``# wrong`` at the end of its wrong line and ``# right: ...`` in the lines that follow; the right kernel is the file with
those put in place. Names that a file may define::

    ERROR, WORDS     what the checker says of the wrong line, in every schedule
    TILES            {name: shape} in float32, or (name of the tile it lies over, shape)
    SEMAPHORES       {name: (how many, role that arrives)} or (how many, role, "cluster")
    TENSORS          {name: shape} in float32; X is filled with new numbers for each call
    SYMMETRIC        names of tensors that peers may see
    COUNTERS         {name: how many}
    WORKERS          {role: workers in a block}; SCOPE: {role: scope}, where it is another than usual
    WORLD, BLOCKS, CLUSTER, CALLS, RESIDENT, SKEW
    loader (a thread), consumer (warpgroups), storer (a thread), communicator (warps): roles (g, s)
    expected         function (X of every rank) -> {tensor: value} for every rank, after each call
"""

import re
import types
from math import prod
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from pknumba import interpreter as cpu
from pknumba.checking import WrongResult
from pknumba.tiles import Role, Semaphore, Tile

HERE = Path(__file__).resolve().parent
SCOPES = {"loader": "thread", "consumer": "warpgroup", "storer": "thread", "communicator": "warp"}
_LINE = re.compile(r"^(?P<indent> *)(?P<code>\S.*?) +# wrong\n(?P<right>(?: *# right: .*\n)+)", re.MULTILINE)


def names():
    """Every file of the catalogue."""
    return sorted(p.stem for p in HERE.glob("*.py") if p.stem not in ("__init__", "bench", "test_bugs"))


def source_of(name):
    """The file."""
    return (HERE / f"{name}.py").read_text()


def corrected(text):
    """(the file with its right lines, how many were exchanged)."""
    def replace(found):
        lines = re.findall(r"# right: (.*)", found["right"])
        return "".join(f"{found['indent']}{line}\n" for line in ["pass" if line == "nothing" else line for line in lines])
    return _LINE.subn(replace, text)


def load(name, right):
    """The wrong or the right kernel of a file, as a module."""
    text = source_of(name)
    module = types.ModuleType(f"bug_{name}")
    exec(compile(corrected(text)[0] if right else text, str(HERE / f"{name}.py"), "exec"), module.__dict__)
    return module


def run(kernel, **options):
    """Call the kernel on every rank. Raises what the checker finds."""
    session = cpu.Session(max_switches=50_000, **options)
    get = vars(kernel).get
    world, calls, rng = get("WORLD", 1), get("CALLS", 1), np.random.default_rng(session.seed)
    arrays = {n: [np.full(shape, np.nan, np.float32) for _ in range(world)] for n, shape in get("TENSORS", {}).items()}
    counters = {n: [np.zeros(count, np.uint32) for _ in range(world)] for n, count in get("COUNTERS", {}).items()}
    shape = arrays["X"][0].shape if "X" in arrays else ()
    data = [[rng.integers(1, 9, shape).astype(np.float32) for _ in range(world)] for _ in range(calls)]
    wrong = []

    def host(rank):
        tensors = {n: cpu.Tensor(n, [x if n in get("SYMMETRIC", ()) or r == rank else None for r, x in enumerate(of)], rank)
                   for n, of in arrays.items()}
        shared = {n: cpu.Counters(n, of, rank) for n, of in counters.items()}
        for call in range(calls):
            cpu.rest(get("SKEW", 0) * (rank == call % world))
            if "X" in arrays:
                arrays["X"][rank][...] = data[call][rank]
            _launch(kernel, session, rank, {**tensors, **shared, "rank": rank, "world_size": world, "call": call + 1})
            for name, value in get("expected", lambda X: [{}] * world)(data[call])[rank].items():
                if not np.array_equal(arrays[name][rank], np.broadcast_to(value, arrays[name][rank].shape)):
                    wrong.append(WrongResult(f"rank {rank}, call {call}: {name} is wrong."))

    for rank in range(world):
        session.spawn_host(rank, lambda r=rank: host(r))
    session.run()
    if wrong:
        raise wrong[0]
    return session


class _Globals(SimpleNamespace):
    """What roles are given."""

    epoch = property(lambda g: cpu.number_of(g.call))


def _launch(kernel, session, rank, fields):
    get = vars(kernel).get
    blocks = get("BLOCKS", 1)
    launch = session.launch(rank, "bug", blocks, get("RESIDENT"), get("CLUSTER", 1))
    for number in range(blocks):
        block = launch.block(number)
        s = _declare(block, get)
        for name, scope in {**SCOPES, **get("SCOPE", {})}.items():
            workers = get("WORKERS", {}).get(name, 1)
            for part in range(workers if get(name) else 0):
                g = _Globals(**fields, block=number, blocks=blocks, part=part)
                launch.role(block, _role(name, scope, get), part, lambda f=get(name), g=g, s=s: f(g, s))
    launch.wait()


def _role(name, scope, get):
    return Role(name, scope, get("WORKERS", {}).get(name, 1), get("TOGETHER", True), get("CLUSTER", 1))


def _declare(block, get):
    s, at, places = SimpleNamespace(), 1024, {}
    for name, shape in get("TILES", {}).items():
        over, shape = (shape[0], shape[1]) if isinstance(shape[0], str) else ("", shape)
        places[name] = places[over] if over else at
        setattr(s, name, block.tile(name, places[name], Tile(shape, "float32", 32)))
        at += 0 if over else 4 * prod(shape)
    for name, (n, by, *of) in get("SEMAPHORES", {}).items():
        decl = Semaphore(n, by, *of)
        setattr(s, name, block.semaphore(name, decl, decl.arrivals(_role(by, "thread", get))))
    return s
