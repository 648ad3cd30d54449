"""Products of float32 on GPUs, multiplied as tf32: against float64, within the bound that cut mantissas explain."""

import numpy as np
import pytest

from pknumba import all_gather_gemm, config, gemm, gemm_all_reduce, gemm_all_to_all, gemm_reduce_scatter
from pknumba.config import GemmConfig
from pknumba.runtime import driver

from ..kernels.products import assert_close, matrix
from .arrays import torch
from .test_gemm_all_reduce_gpu import ranks

AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU"), pytest.mark.timeout(300)]


def test_gemm():
    """Every tile shape that ships, and what a call chooses."""
    def main(world):
        for i, shape in enumerate(((300, 520, 200), (1, 1, 1), (129, 257, 9), (1024, 768, 4096))):
            rng = np.random.default_rng(i)
            a, b = matrix(rng, shape[::2], "float32"), matrix(rng, shape[1:], "float32")
            x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
            for fields in [None, *(f for f, *_ in config._GEMMS)][:None if i == 0 else 2]:
                c = gemm(world, x, y.T, config=fields and GemmConfig(**fields))
                world.synchronize()
                assert_close(c.cpu().numpy(), [(a, b.T)], "float32", (shape, fields))
    ranks(1, main)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks(size):
    def main(world):
        for i, shape in enumerate(((300, 520, 200), (67, 130, 9), (256 * size, 256, 128))):
            (m, n, k), rng, r = shape, np.random.default_rng(i), world.rank
            pairs = [(matrix(rng, (m, k), "float32"), matrix(rng, (n, k), "float32")) for _ in range(size)]
            a, b = (torch.from_numpy(x).cuda() for x in pairs[r])
            sums, (first, _) = [(x, y.T) for x, y in pairs], pairs[0]
            share = torch.from_numpy(np.array_split(first, size)[r]).cuda()
            found = [f(world, a, b.T) for f in (gemm_all_reduce, gemm_reduce_scatter, gemm_all_to_all)]
            found.append(all_gather_gemm(world, share, b.T, rows=m))
            world.synchronize()
            everywhere, rows, exchanged, gathered = (x.cpu().numpy() for x in found)
            assert_close(everywhere, sums, "float32", shape)
            assert_close(np.concatenate(world.allgather(rows)), sums, "float32", shape)
            assert_close(np.concatenate(world.allgather(exchanged))[:, r * n:(r + 1) * n], [sums[r]], "float32", shape)
            assert_close(gathered, [(first, pairs[r][1].T)], "float32", shape)
    ranks(size, main)
