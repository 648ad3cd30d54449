"""Operators that span nodes on a GPU: pretended nodes, ranks as processes that share the card; data between them through pinned memory."""

import pytest

from pknumba.runtime import driver

from .test_gemm_all_reduce_gpu import under_mps

AVAILABLE, WHY = driver.available()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not AVAILABLE, reason=WHY or "a GPU"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("ranks, node_size", [(4, 2), (4, 3)])
def test_pretended_nodes_under_mps(ranks, node_size, monkeypatch):
    monkeypatch.setenv("PKNUMBA_NODE_SIZE", str(node_size))
    under_mps(ranks, "many_nodes.py", 240, calls=20)
