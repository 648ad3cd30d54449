"""What calls of experts do on a GPU, on a stand-in for the driver: which kernels are launched, on how many blocks, what is copied."""

import ml_dtypes
import numpy as np
import pytest

from pknumba import MoeConfig, World, grouped_gemm, moe_layer
from pknumba.lowering import cache
from pknumba.runtime import DeviceArray

from ..runtime.conftest import stub, stub_library  # noqa: F401 - fixtures

BF16 = np.dtype(ml_dtypes.bfloat16)
WORK = ("cuLaunchKernelEx", "cuMemcpy2DAsync_v2", "cuMemsetD8Async")


@pytest.fixture(autouse=True)
def compiler(monkeypatch):
    """Nothing is compiled: a record such as the compiler's."""
    def compiled(kernel, cfg, make_plan):
        boxes, threads = {}, 512
        if "A" in kernel.tensors:
            b = [cfg.tile_n, 64, 128] if cfg.b_transposed else [cfg.tile_k, cfg.panel_n, cfg.b_swizzle]
            boxes = {"A": [[cfg.tile_m, 64, 128]], "B": [b], "C": [[cfg.part_m, cfg.panel_n, cfg.c_swizzle]]}
            threads = 128 * (cfg.consumers + 1)
        return b"\x7fELF", dict(symbol=kernel.__name__, threads=threads, boxes=boxes, peer_boxes={}, semaphores={},
                                counters=list(kernel.all_counters()), sites=[])
    monkeypatch.setattr(cache, "compiled", compiled)


def fields(line):
    """"cuLaunchKernelEx grid 35,1,1 block ..." as {"grid": "35,1,1", ...}."""
    words = line.split()[1:]
    return dict(zip(words[::2], words[1::2]))


def array(*shape, dtype=BF16):
    return DeviceArray.of(np.ones(shape, dtype))


def transposed(x):
    e, n, k = x.shape
    return DeviceArray(x.pointer, (e, k, n), x.dtype, x.device, (n * k * 2, 2, k * 2), owner=x)


def test_maps_of_groups(stub):  # noqa: F811
    """A and C have ragged maps, B has one of three dimensions; a repeated call only launches."""
    with World.local(1, executor="gpu") as world:
        a, b, ends, out = array(300, 64), transposed(array(5, 200, 64)), array(5, dtype=np.int32), array(300, 200)
        stub.clear()
        grouped_gemm(world, a, b, ends, out=out)
        maps = [fields(line) for line in stub.log("cuTensorMapEncodeTiled")]
        assert [m["rank"] for m in maps] == ["4", "3", "4"]
        assert maps[0]["dims"] == f"64,{2**30}" and maps[1]["dims"] == "64,200" and maps[2]["dims"] == f"200,{2**30}"
        stub.clear()
        grouped_gemm(world, a, b, ends, out=out)
        assert [line.split()[0] for line in stub.log()] == ["cuLaunchKernelEx"]
        a, b, out = array(300, 60), array(5, 60, 201), array(300, 201)
        stub.clear()
        grouped_gemm(world, a, b, ends, out=out)             # rows that do not lie on 16 bytes: A, five of B, C there and back
        assert [line.split()[0] for line in stub.log(*WORK)] == [*["cuMemcpy2DAsync_v2"] * 7, "cuLaunchKernelEx", "cuMemcpy2DAsync_v2"]


@pytest.mark.parametrize("size", [1, 2])
def test_layer(stub, size):  # noqa: F811
    """Four launches: routes, first product, second product, sums; tokens are copied to where peers see them, once a call. On one rank they
    are gathered by a launch of its own, and no SM communicates."""
    config = MoeConfig(comm_sms=3)

    def main(world):
        x, indices, weights = array(96, 64), array(96, 2, dtype=np.int32), array(96, 2, dtype=np.float32)
        w1, w2, out = array(8 // size, 64, 128), array(8 // size, 128, 64), array(96, 64)
        world.barrier()
        for call in range(2):
            if world.rank == 0:
                stub.clear()
            world.barrier()
            assert moe_layer(world, x, indices, weights, w1, w2, out=out, config=(config, config)) is out
            world.barrier()
            if world.rank == 0:
                lines = stub.log(*WORK)
                names = [line.split()[0] for line in lines]
                grids = [int(fields(line)["grid"].split(",")[0]) for line in lines if line.startswith("cuLaunchKernelEx")]
                assert names.count("cuMemcpy2DAsync_v2") == (size if size > 1 else 0)
                rows = 96 * 2 * size
                tiles = rows // 128 + 8 // size
                assert sorted(grids) == sorted([1, tiles + 3, tiles + 3, 6] * size if size > 1 else [1, 6, tiles, tiles, 6]), grids
                assert call == 0 or not stub.log("cuTensorMapEncodeTiled", "cuMemAlloc_v2")
            world.barrier()

    with World.local(size, executor="gpu") as world:
        world.run(main)
