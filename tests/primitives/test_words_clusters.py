"""Clusters: the PTX of what blocks of a cluster do to each other, in a product whose tiles share B."""

import re

import pytest

from pknumba.config import GemmConfig
from pknumba.kernels import Gemm

pytestmark = [pytest.mark.ptx, pytest.mark.timeout(120)]

MULTICAST = ("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster", "mov.b16 m, 3;",
             "%cluster_ctarank")
WORDS = {"load_multicast": MULTICAST}


def ptx(cfg):
    from pknumba.lowering.entry import to_ptx
    return to_ptx(Gemm.for_config(cfg).plan(cfg))


@pytest.fixture(scope="module")
def text():
    return ptx(GemmConfig(cluster=2))


def test_words(text):
    assert [w for w in WORDS["load_multicast"] if w not in text] == []


def test_a_stage_is_given_back_to_both_blocks(text):
    """Threads 0 and 1 of a consumer arrive, each at one block: at block scope, since a release at cluster scope is a fence of the GPU."""
    remote = "mapa.shared::cluster.u32 a, {0}, {1}; mbarrier.arrive.release.cta.shared::cluster.b64 _, [a];"
    assert len(re.findall(re.escape(remote).replace(r"\{0\}", r"%r\d+").replace(r"\{1\}", r"%r\d+"), text)) == 2
    assert "release.cluster.shared" not in text and "acquire.cluster.shared" not in text


def test_descriptors_hold_no_block_number(text):
    """In a cluster a shared address names the block from bit 24 on, where a descriptor has the distance of panels: seen on an H200, where
    the second block's product was wrong with B by rows."""
    masks = [re.findall(r"and\.b32\s+%r\d+, %r\d+, (?:261120|262143);", x) for x in (text, ptx(GemmConfig()))]     # of 18 bits
    assert len(masks[0]) >= 2 and not masks[1]


def test_blocks_meet_first(text):
    """Semaphores are initialised and shown to the cluster before anyone may arrive. Blocks do not meet last: a loader that got back all it
    filled knows that nobody arrives any more; one that gives up lingers, since the consumers of other blocks go on and arrive."""
    meet = ["barrier.cluster.arrive.release;", "barrier.cluster.wait.acquire;"]
    order = ["fence.mbarrier_init.release.cluster;", *meet, "griddepcontrol.wait;", "cp.async.bulk.tensor"]
    at = [text.index(w) for w in order]
    assert at == sorted(set(at)) and text.rindex("mbarrier.init") < at[0] and "bar.sync 0;" not in text
    assert all(text.count(w) == 1 for w in meet)
    assert text.count("barrier.cluster") == 2 and text.count("exit;") == text.count("@q bra LINGER; } exit;") >= 2


def test_a_cluster_of_one_knows_nothing_of_clusters():
    text = ptx(GemmConfig())
    assert not re.search(r"multicast|mapa|barrier\.cluster|cluster_ctarank|mbarrier_init", text)
