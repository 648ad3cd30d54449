"""Kernels of a few lines through the normal templates, on both executors: what the tests of primitives run and compile.

A kernel's tensors are 2-D symmetric arrays, so that every rank sees them; a test gives their contents and looks at them
afterwards. ``tests/gpu`` runs the same kernels on a device.
"""

import dataclasses
import functools

import numpy as np

from pknumba.interpreter import dtype_of
from pknumba.lowering import PRIMITIVES, build, cache
from pknumba.lowering.entry import to_ptx
from pknumba.runtime import World
from pknumba.templates import LCS, LCSC
from pknumba.templates.call import Matrix, Workspace, prepare
from pknumba.tiles import Config

__all__ = ["TinyConfig", "Tiny", "TinyComm", "PRIMITIVES", "kernel", "run", "ptx", "lacking", "cubin", "dtype_of", "ints"]


@dataclasses.dataclass(frozen=True)
class TinyConfig(Config):
    """What the tiny kernels read: a tile of rows x cols, and switches."""

    dtype: str = "bfloat16"
    rows: int = 64
    cols: int = 64
    swizzle: int = 128
    consumers: int = 1
    ping_pong: bool = False
    comm_sms: int = 1
    pieces: int = 1
    op: str = "sum"
    multicast: bool = False
    switch: bool = False
    scale: float = 1.0

    runtime = ()


class Tiny(LCS):
    """An LCS kernel whose roles do nothing until a test says what."""

    config, tensors, kinds = TinyConfig, ("X", "Y"), {}
    symmetric = ("X", "Y")

    @staticmethod
    def shared(cfg):
        from pknumba.tiles import Tile, shared
        return shared(t=Tile((64, 64), "bfloat16"))

    @staticmethod
    def loader(cfg, g, s, task):
        pass

    @staticmethod
    def consumer(cfg, g, s, task):
        pass

    @staticmethod
    def storer(cfg, g, s, task):
        pass

    @classmethod
    def plan(kernel, cfg):
        """As usual, with the dtypes that ``kinds`` names."""
        plan = super().plan(cfg)
        return dataclasses.replace(plan, tensors={n: kernel.kinds.get(n, d) for n, d in plan.tensors.items()})


class TinyComm(LCSC, Tiny):
    """The same with communicators."""

    @staticmethod
    def communicator(cfg, g, s, task):
        pass


def kernel(base=Tiny, name="Made", **fields):
    """A kernel class with these roles (plain functions) and other attributes."""
    return type(base)(name, (base,), {n: staticmethod(f) if callable(f) and not isinstance(f, type) else f for n, f in fields.items()})


def ints(shape, dtype, seed=0, low=-3, high=4):
    """Small random integers in that dtype: sums of them are exact."""
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype_of(dtype))


@functools.cache
def ptx(made, cfg=None):
    """The PTX of a kernel, compiled once."""
    return to_ptx(made.plan(cfg or TinyConfig()))


def lacking(words, made, cfg=None):
    """Those of the words that the PTX of a kernel does not contain."""
    text = ptx(made, cfg)
    return [word for word in words if word not in text]


@functools.cache
def cubin(made, cfg=None):
    """(cubin, record) of a kernel, assembled once. Raises CompileError for spills and notices."""
    return build(made.plan(cfg or TinyConfig()))


def run(made, cfg=None, tasks=1, world=1, executor="interpreter", calls=1, grid=None, **arrays):
    """Launch a kernel on every rank; return {name: [array of each rank]} afterwards.

    Args:
        tasks: how many; grid: (rows, columns) of them. calls: launches in a row.
        arrays: contents of its tensors, by name: one array for all ranks, or a list with one for each; other keywords
            (seed, policy, num_sms, ...) go to World.local.
    """
    cfg = cfg or TinyConfig()
    options = {k: arrays.pop(k) for k in set(arrays) - set(made.tensors)}
    if executor == "gpu":
        cache.compiled(made, cfg, lambda: made.plan(cfg))          # before a rank may wait for another

    def main(world):
        memory, found = {}, {}
        for name in made.tensors:
            x = arrays[name][world.rank] if isinstance(arrays[name], list) else arrays[name]
            memory[name] = world.symmetric(x.shape, x.dtype.name)
            _copy(memory[name], x)
        world.barrier()
        matrices = {name: _matrix(memory[name]) for name in memory}
        numbers = {"grid": grid or (tasks, 1), "tasks": tasks, "k_tiles": 1}
        call = prepare(made, world, cfg, matrices, numbers, Workspace(made, world, cfg, max(tasks, world.size)))
        world.barrier()                                            # loading a kernel may wait for kernels that spin already
        for _ in range(calls):
            call.fire(world.stream)
        world.synchronize()
        world.barrier()
        for name in memory:
            found[name] = _contents(memory[name])
        world.barrier()
        return found

    with World.local(world, executor=executor, **options) as everyone:
        results = everyone.run(main)
    return {name: [r[name] for r in results] for name in made.tensors}


def _device_view(symmetric):
    from pknumba.runtime import DeviceArray
    return DeviceArray(symmetric.pointer, symmetric.shape, symmetric.dtype, symmetric.device, symmetric.strides)


def _copy(symmetric, x):
    if symmetric.device == "cpu":
        symmetric.local[...] = x
    else:
        _device_view(symmetric).set(x)


def _contents(symmetric):
    return symmetric.local.copy() if symmetric.device == "cpu" else _device_view(symmetric).get()


def _matrix(symmetric):
    if symmetric.device == "cpu":
        return Matrix(arrays=symmetric.arrays)
    rows, cols = symmetric.shape
    maps = {"targets": tuple((pointer, rows) for pointer in symmetric.pointers)} if "targets" in Matrix._fields else {}
    return Matrix(symmetric.pointer, rows, cols, symmetric.pitch, symmetric.dtype, symmetric.peers_table, **maps)
