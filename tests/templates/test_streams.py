"""Which stream a call is launched on, and the one case that nothing would order."""

import sys
import types

import pytest

from pknumba.errors import WorldError
from pknumba.templates.fast import stream_source


class Tensor:
    """What of a torch tensor matters here."""
    is_cuda, device = True, "cuda:0"


Tensor.__module__ = "torch"


class World:
    """A rank of a local world with a stream of its own."""
    stream = 7

    def stream_of(self, stream, x):
        return self.stream if stream is None else stream


@pytest.fixture
def torch(monkeypatch):
    module = types.ModuleType("torch")
    module.current = 0
    module.cuda = types.SimpleNamespace(current_stream=lambda device: types.SimpleNamespace(cuda_stream=module.current))
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def test_own_stream_where_torch_is_on_it(torch):
    torch.current = 7
    assert stream_source(World(), None, Tensor())() == 7


def test_torch_on_another_stream_is_refused(torch):
    with pytest.raises(WorldError, match="Import torch before World.local"):
        stream_source(World(), None, Tensor())


def test_a_stream_that_is_given_is_taken(torch):
    assert stream_source(World(), 5, Tensor())() == 5
