"""The cost model of many nodes: its bytes are those that are sent, its choices those of the code, its table the document's."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pknumba
from pknumba import World
from pknumba.errors import ConfigError
from pknumba.nodes import trees
from pknumba.tuning.scale import CLUSTERS, INFINIBAND, across, across_product

ROOT = Path(__file__).resolve().parent.parent.parent
OPERATORS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce")


@pytest.mark.parametrize("op", OPERATORS)
def test_bytes_are_those_that_cross(op):
    """Counted on the interpreter: three nodes of two ranks."""
    def main(world):
        getattr(pknumba, op)(world, np.ones((36, 8), np.float32))
        return world.across.engine.sent
    with World.local(6, executor="interpreter", node_size=2) as world:
        sent = sum(world.run(main))
    cluster = 2, *CLUSTERS["8, InfiniBand"][1:]
    assert across(op, 36 * 8 * 4, 3, cluster, split="two phases").crossing == sent


@pytest.mark.parametrize("op", OPERATORS)
def test_shape_of_the_costs(op):
    for cluster in CLUSTERS:
        one, *more = (across(op, 1 << 26, n, cluster, split="two phases") for n in (1, 2, 16, 256))
        assert one.between == 0 and all(m.seconds > one.seconds for m in more)
        assert [m.between for m in more] == sorted(m.between for m in more)
        fixed = [across(op, 1 << 26, 16, cluster, split="two phases", chunks=c) for c in (1, 8)]
        assert fixed[0].seconds == pytest.approx(fixed[0].inside + fixed[0].between) and fixed[1].inside > fixed[0].inside
        best = across(op, 1 << 26, 16, cluster)
        assert best.seconds <= min(f.seconds for f in fixed) and best.bound in ("inside", "between")


def test_what_decides():
    assert across("all_reduce", 1 << 26, 64).bound == "between" and across("all_reduce", 1 << 26, 2).bound == "inside"
    assert across("all_reduce", 1 << 26, 64, "72, InfiniBand").bound == "inside"
    assert across("all_reduce", 1 << 26, 64, split="flat").seconds > 5 * across("all_reduce", 1 << 26, 64).seconds
    assert across("all_reduce", 1 << 26, 4, split="one leader").seconds > across("all_reduce", 1 << 26, 4).seconds
    product = across_product("gemm_all_reduce", 8192, 8192, 4096, 16)
    assert product.seconds < 1.3 * across_product("gemm_all_reduce", 8192, 8192, 4096, 1).seconds and product.bound == "inside"
    assert all(across_product(op, 8192, 8192, 4096, 8).seconds > 0 for op in ("gemm_reduce_scatter", "all_gather_gemm"))
    with pytest.raises(ConfigError, match="no collective 'scan'"):
        across("scan", 1, 2)


def test_the_code_chooses_as_the_model():
    assert trees.MESSAGE_S == INFINIBAND.message_s and trees.RATE == INFINIBAND.bandwidth
    assert trees.STEP_S == INFINIBAND.latency_s + 2 * INFINIBAND.message_s
    for nodes in (2, 16, 128, 1024):
        for nbytes in (1 << 16, 1 << 20, 1 << 24, 1 << 28):
            direct, tree = (across("all_reduce", 8 * nbytes, nodes, split=split, chunks=1) for split in ("two phases", "tree"))
            if abs(direct.between - tree.between) > 0.1 * direct.between:
                assert trees.by_tree(nodes, nbytes) == (tree.between < direct.between), (nodes, nbytes)


def test_the_document_is_current():
    done = subprocess.run([sys.executable, "scripts/scale.py", "--check", "docs/scale.md"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
