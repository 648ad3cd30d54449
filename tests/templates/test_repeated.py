"""Operators that look first whether they were called with just these arrays: what they find, and what they leave to the usual way."""

import inspect
import traceback
import types

import numpy as np
import pytest

import pknumba
from pknumba.templates import fast
from pknumba.templates.repeated import NEWEST, repeated

from .test_found import Guards, Tensor, torch  # noqa: F401 - a fixture
from .test_found import World as Found


class Call:
    """A prepared launch, which counts how often it is fired."""

    def __init__(self, code=0):
        self.fired, self.code = 0, code
        self.ready, self.stream = {7: self._fire}, lambda: 7

    def _fire(self):
        self.fired += 1
        return self.code


class World(Found):
    """One that knows which calls went the usual way."""

    def __init__(self):
        super().__init__()
        self.alarm, self.usual, self.make = types.SimpleNamespace(value=0), [], Call


@repeated("x", "out", "more", result="out, more")
def operate(world, x, *, option=1, out=None, more=None, stream=None):
    """What it does."""
    world.usual.append(option)
    if not hasattr(world, "cache"):
        raise ValueError("no world")
    call = fast.found(world, ("operate", option, stream), (x, out, more), world.make)
    world.cache[NEWEST] = call
    call.ready[call.stream()]()
    return out, more


#: Of a torch that compares forms.
COMPARED = pytest.mark.parametrize("torch", [Guards], indirect=True)


def tensors(n=3):
    return [Tensor(np.zeros((2, 3), "float32")) for _ in range(n)]


@COMPARED
def test_the_same_arrays_are_found(torch):  # noqa: F811
    world, (x, out, more) = World(), tensors()
    assert operate(world, x, out=out, more=more) == (out, more) and world.usual == [1]
    call = world.cache[NEWEST]
    for times in range(2, 5):
        assert operate(world, x, out=out, more=more) == (out, more) and call.fired == times and world.usual == [1]
    assert operate(world, Tensor(x.array), out=out, more=more) == (out, more) and world.usual == [1], "another object at the same place"


@COMPARED
@pytest.mark.parametrize("change", ["option", "stream", "place", "form", "out"])
def test_others_are_not(torch, change):  # noqa: F811
    world, (x, out, more) = World(), tensors()
    operate(world, x, out=out, more=more)
    first, given = world.cache[NEWEST], dict(out=out, more=more)
    x = {"place": Tensor(x.array.copy()), "form": Tensor(x.array.T)}.get(change, x)
    given.update({"option": dict(option=2), "stream": dict(stream=5), "out": dict(out=tensors()[0])}.get(change, {}))
    for times in (2, 2):                                    # both are known from now on
        operate(world, x, **given)
        assert len(world.usual) == times and world.cache[NEWEST] is not first and first.fired == 1


def test_where_torch_compares_no_forms(torch):  # noqa: F811
    """A place alone finds nothing then."""
    world, (x, out, more) = World(), tensors()
    operate(world, x, out=out, more=more)
    operate(world, Tensor(x.array.T), out=out, more=more)
    assert len(world.usual) == 2
    operate(world, x, out=out, more=more)
    assert len(world.usual) == (3 if fast._comparer() is None else 2) + (fast._comparer() is not None)


@pytest.mark.parametrize("given", [dict(out=None), dict(more=False), dict(option=[])])
def test_what_has_no_place_goes_the_usual_way(torch, given):  # noqa: F811
    world, (x, out, more) = World(), tensors()
    for times in (1, 2):
        operate(world, x, **{"out": out, "more": more, **given})
        assert len(world.usual) == times


SPOILT = {"something happened in the world": lambda world: setattr(world.alarm, "value", 1),
          "the launch is refused": lambda world: setattr(world.cache[NEWEST], "code", 201)}


@COMPARED
@pytest.mark.parametrize("how", SPOILT)
def test_the_usual_way_says_what_is_wrong(torch, how):  # noqa: F811
    world, (x, out, more) = World(), tensors()
    operate(world, x, out=out, more=more)
    SPOILT[how](world)
    operate(world, x, out=out, more=more)
    assert len(world.usual) == 2, how


@COMPARED
def test_calls_that_are_more_than_a_launch(torch):  # noqa: F811
    world, (x, out, more) = World(), tensors()
    operate(world, x, out=out, more=more)
    world.cache[NEWEST].ready = {}
    world.cache = {key: call for key, call in world.cache.items() if key[0] != operate.__wrapped__}
    with pytest.raises(KeyError):
        operate(world, x, out=out, more=more)
    assert not [key for key in world.cache if key[0] == operate.__wrapped__]


def test_no_world():
    with pytest.raises(AttributeError, match="usual") as failed:
        operate(None, *tensors(1))
    assert "anew(key, operator, world, x=x" in "".join(traceback.format_exception(failed.value)), "the text of the function is shown"


@pytest.mark.parametrize("name", ["gemm", "all_reduce", "all_reduce_rmsnorm", "attention", "ring_attention", "send_recv"])
def test_operators_look_as_they_are_written(name):
    operator = getattr(pknumba, name)
    assert inspect.signature(operator) == inspect.signature(operator.__wrapped__) and operator.__doc__ == operator.__wrapped__.__doc__
    assert operator.__name__ == name and operator.__module__ == f"pknumba.kernels.{name}"
