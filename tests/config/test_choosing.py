"""best(): every choice can run, clusters appear where the model has a reason for them, and nowhere else."""

import itertools

import numpy as np
import pytest

from pknumba.config import AllGatherGemmConfig, GemmAllReduceConfig, GemmConfig, GemmReduceScatterConfig, best, moving_sms
from pknumba.errors import ConfigError
from pknumba.runtime.arrays import ArrayInfo
from pknumba.templates.matrices import _lines

SIZES = (1, 100, 512, 1536, 4096, 16384)
LINES = list(itertools.product((1, 2), repeat=2))


@pytest.mark.parametrize("sms", [1, 2, 3, 66, 132])
def test_every_choice_can_run(sms):
    """In each dtype, as a call makes it."""
    for m, n, k in itertools.product(SIZES, repeat=3):
        for lines in LINES:
            cfg = best(m, n, k, sms, lines=lines)
            for dtype in ("bfloat16", "float16", "float32"):
                cfg.of(dtype, True).check()
            assert max(cfg.cluster, cfg.slices) <= sms
        for family in (GemmAllReduceConfig, AllGatherGemmConfig):
            cfg = best(m, n, k, max(sms, 2), family(), 2)
            cfg.check()
            assert cfg.cluster == 1


def test_rows_that_straddle_lines():
    """With both operands such, blocks share B; with B by rows as well aligned as it is, there are lines enough."""
    for shape in ((4096, 4096, 4104), (2048, 2048, 2056), (8192, 8192, 8200)):
        assert best(*shape, 132, lines=(2, 2)).cluster > 1 and best(*shape, 132).cluster == 1


def test_few_tiles_and_long_sums():
    for shape in ((512, 512, 16384), (256, 256, 32768), (128, 128, 16384)):
        cfg = best(*shape, 132)
        tiles = -(-shape[0] // cfg.tile_m) * -(-shape[1] // cfg.tile_n)
        assert cfg.slices > 1 and 64 <= tiles * cfg.slices <= 132, "one wave that leaves few SMs idle"
    assert best(128, 8192, 8192, 132).tile_m == 128, "B is read once"
    for shape in ((128, 8192, 8192), (1024, 1024, 4096), (1024,) * 3, (4096,) * 3, (16384, 16384, 64), (512, 512, 64)):
        assert best(*shape, 132).slices == 1


def test_waves_that_fit():
    """128 tiles for 132 SMs; five waves instead of six."""
    assert best(1536, 1536, 1536, 132).tile_n == 96 and best(2048, 7168, 2048, 132).tile_n == 176
    assert best(1536, 1536, 1536, 132, AllGatherGemmConfig(), 2).tile_n not in (96, 176), "not compiled for operators that communicate"


@pytest.mark.parametrize("pointer, pitch, transposed, lines", [
    (1 << 20, 8192, False, 1), (1 << 20, 8208, False, 2), ((1 << 20) + 32, 8192, False, 1), ((1 << 20) + 16, 8192, False, 2),
    (1 << 20, 8208, True, 2), (1 << 20, 8202, False, 1), ((1 << 20) + 2, 8192, False, 1)])
def test_lines_of_an_array(pointer, pitch, transposed, lines):
    """Rows that the copy engine cannot read are copied to memory where they begin on lines."""
    strides = (2, pitch) if transposed else (pitch, 2)
    assert _lines(ArrayInfo(pointer, (64, 64), strides, "bfloat16", 0, None), transposed) == lines


def test_family_and_other_fields_are_kept():
    base = GemmConfig(dtype="float16", b_transposed=False)
    cfg = best(4096, 4096, 4104, 132, base, lines=(2, 2))
    assert (cfg.dtype, cfg.b_transposed) == ("float16", False) and np.prod(cfg.b_shape) == 64 * cfg.tile_n


def test_what_is_sent_in_parts():
    """Smaller parts where the depth hides them, whole panels where each SM has a tile or two; as config.best launches."""
    def chosen(family, m, n, k, world=2):
        return best(m, n, k, 132, family(intra_sm=True), world)
    assert chosen(GemmAllReduceConfig, 8192, 8192, 4096).pace_m == 32 and chosen(GemmAllReduceConfig, 4096, 4096, 2048).pace_m == 64
    assert chosen(GemmReduceScatterConfig, 4096, 4096, 2048).pace_m == 32 and chosen(GemmReduceScatterConfig, 8192, 8192, 1024).pace_m == 64
    for family in (GemmAllReduceConfig, GemmReduceScatterConfig):
        assert chosen(family, 2048, 2048, 1024).pace_m == 0 and best(8192, 8192, 4096, 132, family(), 2).pace_m == 0
        for pace_m, fault in ((12, "multiple of 8"), (48, "Use a divisor"), (-8, "or 0")):
            with pytest.raises(ConfigError, match=fault):
                family(intra_sm=True, pace_m=pace_m).check()
    large, small = chosen(AllGatherGemmConfig, 8192, 8192, 4096), chosen(AllGatherGemmConfig, 2048, 2048, 1024)
    assert (large.written, large.chunk_m, small.written) == (True, 32, False)
    assert not best(8192, 8192, 4096, 132, AllGatherGemmConfig(), 2).written, "SMs of their own wait for nothing else"


def test_moving_sms():
    """As many as move all in a sixth of the time that computing takes, within bounds; fewer of a part of a card."""
    assert [moving_sms(flops, 1 << 25, 132) for flops in (1e10, 1e11, 3e11, 1e12, 0)] == [16, 16, 10, 6, 16]
    assert [moving_sms(1e11, 1 << 25, sms) for sms in (66, 32, 14, 4)] == [8, 4, 1, 1]
