"""Which prepared call is found for arrays: by where they lie, and by what torch compares."""

import sys
import types

import numpy as np
import pytest

from pknumba.templates import fast
from pknumba.templates.fast import found


class Tensor:
    """What of a torch tensor matters here."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def data_ptr(self):
        return self.array.ctypes.data

    def stride(self):
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def int(self):
        return Tensor(self.array.astype("int32"))

    def __getitem__(self, where):
        return Tensor(self.array[where])

    def __add__(self, other):
        return Tensor(self.array + np.float32(other))


Tensor.__module__ = "torch"


class Guards:
    """Stands for torch's: compares no tensor twice."""

    def __init__(self, *tensors, dynamic_dims_sizes, dynamic_dims_strides):
        self.known = [(type(x), x.dtype, *map(tuple, form)) for x, *form in zip(tensors, dynamic_dims_sizes, dynamic_dims_strides)]

    def check(self, *tensors):
        assert len(tensors) == len(self.known)
        return len(set(map(id, tensors))) == len(tensors) and [(type(x), x.dtype, x.shape, x.stride()) for x in tensors] == self.known


class Blind(Guards):
    """One that overlooks strides."""

    def check(self, *tensors):
        return [x.shape for x in tensors] == [shape for _, _, shape, _ in self.known]


class World:
    """What of a world matters here."""
    executor, checked = "gpu", 0

    def __init__(self):
        self.cache = {}

    def check(self):
        self.checked += 1


@pytest.fixture(params=[Guards, Blind, None])
def torch(request, monkeypatch):
    """torch with guards that work, with some that do not, or without any."""
    guards = types.SimpleNamespace(**({"TensorGuards": request.param} if request.param else {}))
    module = types.ModuleType("torch")
    module.Tensor, module.zeros = Tensor, lambda *shape, device: Tensor(np.zeros(shape, "float32"))
    module._C = types.SimpleNamespace(_dynamo=types.SimpleNamespace(guards=guards))
    monkeypatch.setitem(sys.modules, "torch", module)
    for name in ("forms", "places"):
        monkeypatch.setattr(fast, name, {kind: read for kind, read in getattr(fast, name).items() if kind is not Tensor})
    fast._comparer.cache_clear()
    yield module
    fast._comparer.cache_clear()
    assert fast.places[Tensor] is (Tensor.data_ptr if request.param is Guards else fast._torch)


class Maker:
    """found(), which counts what it makes."""

    def __init__(self):
        self.world, self.made = World(), 0

    def __call__(self, *arrays, what=()):
        return found(self.world, ("kernel", *what), arrays, self._make)

    def _make(self):
        self.made += 1
        return types.SimpleNamespace()


def test_another_form_at_the_same_place_is_another_call(torch):
    of, memory = Maker(), np.zeros((4, 6), "float32")
    views = [memory, memory[:2], memory[:, :3], memory.T, memory.reshape(6, 4), memory.view("int32"), memory[::2]]
    calls = [of(Tensor(view), None) for view in views]
    assert of.made == len(views) == len(set(map(id, calls))) and not of.world.checked
    for _ in range(2):                              # in turns at one place, each time as other objects
        assert [of(Tensor(view), None) for view in views] == calls
    assert of.made == len(views) and of.world.checked == 2 * len(views)
    assert of(Tensor(memory), what=("more",)) is not calls[0] and of(Tensor(memory.copy()), None) is not calls[0]


def test_the_order_and_number_of_arrays_matter(torch):
    of, x, y = Maker(), Tensor(np.zeros((2, 2), "float32")), Tensor(np.zeros((2, 2), "float32"))
    calls = [of(x, y), of(y, x), of(x), of(x, None), of(None, x)]
    assert len(set(map(id, calls))) == 5 and of(x, y) is calls[0] and of(None, x) is calls[4]


def test_one_array_twice(torch):
    """Torch compares no tensor twice; two objects that are alike are the same to a launch."""
    of, memory = Maker(), np.zeros((4, 4), "float32")
    x, y = Tensor(memory), Tensor(np.ones(3, "float32"))
    call = of(x, y, x)
    assert of(x, y, x) is call is of(Tensor(memory), y, x) is of(x, y, x) and of.made == 1
    assert of(x, y, Tensor(memory.T)) is not call is of(x, y, x) and of.made == 2


def test_beside_arrays_of_our_own(torch):
    class Symmetric:
        peers_table, mark = 0, "the third"
    Symmetric.__module__ = "pknumba.runtime.symmetric"
    of, memory, out = Maker(), np.zeros((4, 4), "float32"), Symmetric()
    call = of(Tensor(memory), out)
    assert of(Tensor(memory), out) is call is not of(Tensor(memory.T), out) and of.made == 2
    out.mark = None                                 # closed: nothing is found, nothing is kept
    kept = len(of.world.cache)
    assert of(Tensor(memory), out) is not of(Tensor(memory), out) and of.made == 4 and len(of.world.cache) == kept


def test_what_no_call_is_found_by(torch):
    of = Maker()
    fast._meet(Tensor)
    for arrays, what in (((np.zeros(3),), ()), ((None,), ([],)), ((object(),), ())):
        assert of(*arrays, what=what) is not of(*arrays, what=what) and not of.world.cache
    call = types.SimpleNamespace()
    assert found("no world", (), (), lambda: call) is call
    of.world.executor = "interpreter"
    assert of(None) is not of(None) and not of.world.cache


def test_the_torch_that_is_installed():
    """Its comparison is private: what we rely on is tried."""
    torch = pytest.importorskip("torch")
    fast._comparer.cache_clear()
    assert fast._comparer() is not None, torch.__version__
    of, memory = Maker(), torch.zeros(4, 6)
    views = [memory, memory[:2], memory[:, :3], memory.T, memory.view(6, 4), memory.view(torch.int32), memory[::2]]
    calls = [of(view, None) for view in views]
    assert [of(view, None) for view in views] == calls and of.made == len(views)
    call = of(memory, memory)
    memory.t_()                                     # the same object
    assert of(memory, memory) is not call and of(memory, None) is calls[3]
    with torch.inference_mode():
        assert of(memory, None) is calls[3]
    assert of(torch.nn.Parameter(memory), None) is calls[3]
