"""What a debug build looks at around a call: on the stand-in for the driver, whose kernels are Python functions here."""

import ctypes
import struct
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from pknumba import World, all_gather, attention, gemm, gemm_all_reduce
from pknumba.errors import ProtocolError, WorldError
from pknumba.lowering import CHECK, cache
from pknumba.runtime import DeviceArray, driver, guards, hang
from pknumba.templates import attending, matrices, transfers
from pknumba.templates.call import describe_hang

from ..runtime.conftest import stub, stub_library  # noqa: F401 - fixtures

BF16 = np.dtype(ml_dtypes.bfloat16)
ONES = np.ones((24, 40), BF16)


@pytest.fixture
def kernel(stub, monkeypatch):  # noqa: F811
    """kernel(function): from now on a launch is function(the matrix C)."""
    monkeypatch.setenv("PKNUMBA_DEBUG", "1")

    def install(function):
        def prepare(kernel, world, cfg, held, numbers, workspace):
            return SimpleNamespace(fire=lambda stream: function(held["C"]))
        monkeypatch.setattr(matrices, "prepare", prepare)
    return install


def fill(C, values=ONES, skip=()):
    """Write a matrix, row by row."""
    for i, row in enumerate(values):
        if i not in skip:
            driver.copy_in(C.pointer + i * C.pitch, row.tobytes())


def call():
    """The result of a product on one rank, in memory that is zero before."""
    with World.local(1, executor="gpu") as world:
        out = DeviceArray.of(np.zeros((24, 40), BF16))
        gemm(world, DeviceArray.of(np.ones((24, 16), BF16)), DeviceArray.of(np.ones((16, 40), BF16)), out=out)
        return out.get()


def test_a_right_result_comes_through(kernel):
    kernel(fill)
    assert (call() == 1).all()


def test_elements_that_nobody_wrote_are_counted(kernel):
    kernel(lambda C: fill(C, skip=(7, 9)))
    with pytest.raises(ProtocolError, match=r"Gemm: 80 elements of the result were never written, the first at \[7, 0\]"):
        call()


@pytest.mark.parametrize("offset, text", [(24 * 112 + 3, "3 bytes from the start of row 24"), (-1, "111 bytes from the start of row -1"),
                                          (5 * 112 + 81, "81 bytes from the start of row 5, which has 80")])
def test_bytes_beside_the_result_are_noticed(kernel, offset, text):
    def astray(C):
        assert C.pitch == 112
        fill(C)
        driver.copy_in(C.pointer + offset, b"x")
    kernel(astray)
    with pytest.raises(ProtocolError, match=f"1 bytes beside the result were written, the first {text}"):
        call()


def test_a_broken_world_says_why(kernel):
    kernel(lambda C: None)
    with World.local(1, executor="gpu") as world:
        with pytest.raises(ProtocolError, match="960 elements"):
            gemm(world, DeviceArray.of(np.ones((24, 16), BF16)), DeviceArray.of(np.ones((16, 40), BF16)))
        with pytest.raises(WorldError, match="broken.*960 elements"):
            world.check()


@pytest.mark.parametrize("bug, text", [("unwritten", "GemmAllReduce: 40 elements .* the first at .3, 0."),
                                       ("behind", "byte 0 behind a symmetric array of 1920 bytes")])
def test_symmetric_memory(kernel, monkeypatch, bug, text):
    """A result in symmetric memory is poisoned before each call; behind it lie guard bytes."""
    def play(C):
        fill(C, skip=(3,) if bug == "unwritten" else ())
        if bug == "behind":
            driver.copy_in(C.pointer + 2048, b"x")
    kernel(play)
    monkeypatch.setattr(matrices, "check_sms", lambda *a: None)

    def main(world):
        out = world.symmetric((24, 40))
        gemm_all_reduce(world, DeviceArray.of(np.ones((24, 16), BF16)), DeviceArray.of(np.ones((16, 40), BF16)), out=out)

    with pytest.raises(ProtocolError, match=text):
        World.local(2, executor="gpu").run(main)


@pytest.mark.parametrize("bug, text", [("", None), ("unwritten", r"all_gather: 40 elements of the result were never written"),
                                       ("beside", "all_gather: 1 bytes beside the result were written")])
def test_collectives(stub, monkeypatch, bug, text):  # noqa: F811
    """A result that the call makes is between guards too."""
    monkeypatch.setenv("PKNUMBA_DEBUG", "1")

    class Launch:
        results = [(2, "Y")]

        def fire(self, stream, result):
            driver.copy_in(result.pointer, np.ones(result.shape, BF16).tobytes()[:None if bug != "unwritten" else -80])
            if bug == "beside":
                driver.copy_in(result.pointer + result.nbytes + 20, b"x")

    monkeypatch.setattr(transfers, "DeviceComm", lambda *a: Launch())

    def main(world):
        return all_gather(world, DeviceArray.of(np.ones((12, 20), BF16))).get()

    with World.local(2, executor="gpu") as world:
        if text is None:
            assert all((y == 1).all() and y.shape == (24, 20) for y in world.run(main))
        else:
            with pytest.raises(ProtocolError, match=text):
                world.run(main)


@pytest.mark.parametrize("skip, text", [(0, None), (2, "1 elements of the result were never written, the first at .0, 4095.")])
def test_attention(stub, monkeypatch, skip, text):  # noqa: F811
    """A dense result in the caller's own memory is NaN before, and looked at after."""
    monkeypatch.setenv("PKNUMBA_DEBUG", "1")

    def prepare(kernel, world, cfg, held, numbers, workspace):
        ones = np.ones(4096, BF16).tobytes()
        return SimpleNamespace(fire=lambda stream: driver.copy_in(held["O"].pointer, ones[:len(ones) - skip]))
    monkeypatch.setattr(attending, "prepare", prepare)
    with World.local(1, executor="gpu") as world:
        q, k, v = (DeviceArray.of(np.ones((1, 2, 32, 64), BF16)) for _ in range(3))
        if text is None:
            assert (attention(world, q, k, v)[0].get() == 1).all()
        else:
            with pytest.raises(ProtocolError, match=text):
                attention(world, q, k, v)


def test_without_it_nothing_is_added(stub, monkeypatch):  # noqa: F811
    monkeypatch.delenv("PKNUMBA_DEBUG", raising=False)
    with World.local(1, executor="gpu") as world:
        assert world.symmetric((4, 4))._block.guard is None
        a = world.symmetric((4, 4))._block
        assert a.table - a.pointers[0] == 256 and a.touched() is None
    assert not guards.debug()


def test_a_violation_is_a_typed_error_at_its_line(stub, monkeypatch):  # noqa: F811
    record = dict(sites=["mine.py:31"], checks=["first row of a window of C"], semaphores={}, counters=[])
    monkeypatch.setattr(cache, "compiled", lambda *a: (b"", record))
    from pknumba.kernels import Gemm
    with World.local(1, executor="gpu") as world:
        world.hang_names = lambda r: describe_hang(Gemm, Gemm.config(), r)
        words = hang.MAGIC_VALUE, 0, 5, 3, CHECK | 1 << 16, 0, 776, (1 << 32) - 64, 0, 0
        ctypes.memmove(world.error_record, struct.pack("<10I", *words), 40)
        with pytest.raises(ProtocolError, match=r"Gemm: rank 0 block 5 storer at mine.py:31: first row of a window of C is -64; it must be "
                                                r"from 0 to 775\. A debug build"):
            world.check()
