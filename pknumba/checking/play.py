"""Plays a toy problem on the interpreter: several calls in a row, guarded arrays, ranks that come late, exact results."""

from types import SimpleNamespace

import numpy as np

from .. import interpreter as cpu
from ..errors import PknumbaError
from ..templates.call import InterpretedCall, Matrix, Workspace

#: Elements of NaN around each array: rows above and below, columns at both sides.
_MARGIN = 2, 8


class WrongResult(PknumbaError, AssertionError):
    """A kernel ended and its result is not what its definition says, or it touched memory beside its arrays."""


def guarded(values):
    """(view with those values, the larger array that it lies in, full of NaN)."""
    shape, (r, c) = (1, *values.shape)[-2:] if values.ndim < 2 else values.shape, _MARGIN
    around = np.full((*shape[:-2], shape[-2] + 2 * r, shape[-1] + 2 * c), _blank(values.dtype), values.dtype)
    view = around[..., r:r + shape[-2], c:c + shape[-1]]
    view[...] = values.reshape(shape)
    return (view if values.ndim >= 2 else view[0]), around


def _blank(dtype):
    return np.nan if dtype.kind in "fV" else np.iinfo(dtype).max


def _same(x, y):
    """Element by element; NaN equals NaN, so that a guard can be compared."""
    return (x == y) | ((x != x) & (y != y))


class _Rank:
    """One rank's guarded arrays."""

    def __init__(self, inputs, outputs, scratch):
        self.arrays, self.around, self.scratch = {}, {}, scratch
        blank = {name: np.full(shape, np.nan, np.float32) for name, shape in scratch.items()}
        for name, values in {**outputs, **inputs, **blank}.items():
            self.arrays[name], self.around[name] = guarded(values)

    def fill(self, inputs, outputs):
        """New values; what is only an output is blank."""
        for name, view in self.arrays.items():
            view[...] = inputs[name] if name in inputs else _blank(view.dtype)

    def check(self, text, inputs, outputs):
        """Raise WrongResult for an output with other values, a changed input, or something written around an array."""
        for name, view in ((n, v) for n, v in self.arrays.items() if n not in self.scratch):
            wanted = outputs.get(name, inputs.get(name))
            wrong = ~_same(view, wanted.reshape(view.shape))
            if wrong.any():
                at = tuple(map(int, np.argwhere(wrong)[0]))
                raise WrongResult(f"{text}: {name} is wrong in {wrong.sum()} of {wrong.size} elements, first at {at}: it is {view[at]} and "
                                  f"should be {wanted.reshape(view.shape)[at]}. Nothing raced and nothing misused a semaphore: look at "
                                  "coordinates, owners and the tasks that nobody plays.", name=name, at=at)

    def check_around(self, text):
        """Raise WrongResult if something around an array was written."""
        for name, around in self.around.items():
            copy = around.copy()
            r, c = _MARGIN
            copy[..., r:copy.shape[-2] - r, c:copy.shape[-1] - c] = _blank(copy.dtype)
            if not _same(copy, np.full_like(copy, _blank(copy.dtype))).all():
                raise WrongResult(f"{text}: wrote beside {name}. A kernel writes its arrays only. Look at coordinates and shapes of "
                                  "windows.", name=name)


class _Desk:
    """The world as a template's call sees it, without arrays of its own."""

    executor = "interpreter"

    def __init__(self, rank, size, num_sms, session, shared):
        self.rank, self.size, self.num_sms, self.session, self._shared = rank, size, num_sms, session, shared

    def counters(self, name, n):
        """uint32[n] of every rank; the first rank that asks makes them."""
        arrays = self._shared.setdefault(name, [np.zeros(n, np.uint32) for _ in range(self.size)])
        return SimpleNamespace(arrays=arrays)


def play(kernel, toy, world=1, calls=2, seed=0, skew=0, keep=None, **options):
    """Call ``kernel`` on every rank ``calls`` times, with new values in the same arrays and no barrier between.

    Args:
        toy: Toy; one with a ``main`` is a program, and calls and compares by itself.
        skew: how many steps another rank each time comes late. options: of interpreter.Session.
        keep: function that is given the session before it runs.

    Returns: the session.

    Raises: WrongResult, and whatever the session finds: RaceError, ProtocolError, DeadlockError, ContractError.
    """
    keep = keep or (lambda session: None)
    if toy.main is not None:
        return _run_program(toy, world, keep, seed=seed, **options)
    session = cpu.Session(seed=seed, **options)
    keep(session)
    _play(session, kernel, toy, world, calls, skew)
    return session


def _run_program(toy, size, keep, **options):
    from ..runtime import World
    world = World.local(size, executor="interpreter", num_sms=toy.sms, **options)
    session = world.session
    keep(session)
    world.run(toy.main)
    return session


def _play(session, kernel, toy, world, calls, skew):
    rng, seed = np.random.default_rng(session.seed), session.seed
    data = [[toy.inputs(rng, rank) for rank in range(world)] for _ in range(calls)]
    wanted = [toy.expected(inputs) for inputs in data]
    ranks = [_Rank(data[0][rank], wanted[0][rank], toy.scratch) for rank in range(world)]
    text, shared, wrong = f"{kernel.__name__} on {world} ranks", {}, []

    def host(rank):
        desk = _Desk(rank, world, toy.sms, session, shared)
        workspace = Workspace(kernel, desk, toy.config, toy.numbers["tasks"] * (toy.config.parts if kernel.private else 1))
        arrays = {n: [r.arrays[n] if n in kernel.symmetric or i == rank else None for i, r in enumerate(ranks)] for n in kernel.tensors}
        matrices = {n: Matrix(arrays=x) for n, x in arrays.items()}
        call = (toy.call or InterpretedCall)(kernel, desk, toy.config, matrices, toy.numbers, workspace, toy.warps)
        for number, inputs in enumerate(data):
            cpu.rest(skew if (number + seed) % world == rank else 0)
            ranks[rank].fill(inputs[rank], wanted[number][rank])
            call.fire()
            try:
                ranks[rank].check(f"{text}, rank {rank}, call {number}", inputs[rank], wanted[number][rank])
            except WrongResult as error:            # later: an error that the session finds says more
                wrong.append(error)

    for rank in range(world):
        session.spawn_host(rank, lambda r=rank: host(r))
    session.run()
    if wrong:
        raise wrong[0]
    for rank, r in enumerate(ranks):
        r.check_around(f"{text}, rank {rank}")
