"""On which stream the library of an array works while what nodes give is merged."""

import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest

from pknumba.runtime.nodes import merging


class Torch(ModuleType):
    """What of torch matters here. Like torch's, its ExternalStream of pointer 0 is a stream of its own, not the default one."""

    def __init__(self):
        super().__init__("torch")
        self.on = []
        self.cuda = SimpleNamespace(stream=self._stream, default_stream=lambda device: ("default", device),
                                    ExternalStream=lambda pointer, device: ("external", pointer, device) if pointer else ("pool", device))

    @contextmanager
    def _stream(self, stream):
        self.on.append(stream)
        yield


@pytest.mark.parametrize("pointer, stream", [(0, ("default", 1)), (4096, ("external", 4096, 1))])
def test_torch_works_where_kernels_do(monkeypatch, pointer, stream):
    monkeypatch.setitem(sys.modules, "torch", torch := Torch())
    tensor = type("Tensor", (), {"__module__": "torch", "is_cuda": True, "device": 1})
    with merging.on(tensor(), pointer):
        assert torch.on == [stream]
