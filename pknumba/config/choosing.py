"""Which configuration is expected to be fastest: a model with rates that were measured."""

from .products import GemmConfig

#: Shapes of GEMM that `best` chooses among, with the share of the tensor cores' rate that each reaches on large problems.
_GEMMS = (
    (dict(tile_m=128, tile_n=192, stages=4, c_stages=3, ping_pong=True), 1.00),
    (dict(tile_m=128, tile_n=256, stages=4, c_stages=2), 0.98),
    (dict(tile_m=256, tile_n=128, stages=4, c_stages=1, group_m=6), 0.98),
    (dict(tile_m=128, tile_n=128, stages=6, c_stages=2, ping_pong=True), 0.93),
    (dict(tile_m=128, tile_n=64, stages=8, c_stages=1), 0.72),
    (dict(tile_m=64, tile_n=128, stages=8, c_stages=2, consumers=1, group_m=24), 0.75),
    (dict(tile_m=64, tile_n=64, stages=12, c_stages=1, consumers=1, group_m=24), 0.5),
)
#: What products of one rank choose among: (fields, rate, seconds that a tile takes beside its products), fitted to what an H200 took
#: (benchmarks/results/checks/gemm_sweep.jsonl, within 2 to 6 %). A rate above 1: short runs have higher clocks. Consumers store by
#: themselves (``direct``), which ends a call 0.25 microseconds sooner; over many tiles of 128 x 256 a storer is as fast.
_ALONE = (
    (dict(tile_m=128, tile_n=192, stages=4, c_stages=2, ping_pong=True, direct=True), 1.035, 0.4e-6),
    (dict(tile_m=128, tile_n=256, stages=4, c_stages=2, group_m=8), 1.04, 2.25e-6),
    (dict(tile_m=128, tile_n=256, stages=4, c_stages=2, direct=True, ahead=1), 1.025, 2.0e-6),
    (dict(tile_m=256, tile_n=128, stages=4, c_stages=1, group_m=4, direct=True, ahead=1), 1.02, 2.0e-6),
    (dict(tile_m=128, tile_n=128, stages=6, c_stages=2, ping_pong=True, direct=True, ahead=1), 1.00, 0.5e-6),
    (dict(tile_m=128, tile_n=64, stages=8, c_stages=1, direct=True, ahead=1), 0.82, 0.3e-6),
    (dict(tile_m=64, tile_n=128, stages=8, c_stages=2, consumers=1, group_m=24, direct=True, ahead=1), 0.81, 0.0),
    (dict(tile_m=64, tile_n=64, tile_k=128, stages=6, c_stages=1, consumers=1, group_m=24, direct=True), 0.60, 0.0),
    (dict(tile_m=64, tile_n=32, tile_k=128, stages=8, c_stages=1, consumers=1, group_m=24, direct=True), 0.36, 0.0),
    (dict(tile_m=128, tile_n=176, stages=5, c_stages=2, ping_pong=True, direct=True), 1.00, 0.6e-6),
    (dict(tile_m=192, tile_n=96, stages=5, c_stages=2, consumers=3, direct=True, ahead=1), 1.00, 0.4e-6),
    (dict(tile_m=128, tile_n=192, stages=4, c_stages=3, direct=True, ahead=1), 1.03, 1.3e-6),
)
#: Tiles whose depth may be in slices: (fields, rate, seconds), and how many slices.
_SLICED = (
    (dict(tile_m=128, tile_n=128, stages=6, c_stages=2, direct=True, ahead=1), 0.95, 0.7e-6),
    (dict(tile_m=64, tile_n=128, stages=8, c_stages=2, consumers=1, group_m=24, direct=True, ahead=1), 0.78, 0.0),
    (dict(tile_m=128, tile_n=64, stages=8, c_stages=1, direct=True, ahead=1), 0.74, 0.3e-6),
    (dict(tile_m=64, tile_n=64, stages=12, c_stages=1, consumers=1, group_m=24, direct=True, ahead=1), 0.52, 0.0),
)
_SLICES = (2, 4, 8, 16)
#: Seconds of a call beside its tiles; in which the blocks of a cluster meet; in which those that share a depth add up, and
#: more for each of their slices and for each element of a tile. Bytes per second that operands come with from memory.
_CALL, _MEET, _ADD_UP, _MEMORY = 1.95e-6, 0.4e-6, (1.5e-6, 0.1e-6, 1.6e-10), 3.8e12

#: FLOP/s of one SM that multiplies at rate 1: measured on an H200, benchmarks/results/gemm.jsonl.
_SM_FLOPS = 5.3e12
#: FLOP/s of an H200 on large products, and bytes per second that its bulk copies add at a peer over NVLink: measured,
#: benchmarks/results/gemm.jsonl and micro.jsonl.
_FLOPS, _ADD_RATE = 7.1e14, 3.25e11
#: Lines of L2 that an SM gets in the time in which it multiplies 128 x 64 by 64 x 256 at rate 1: measured with rows that begin 16
#: bytes off.
_SM_LINES = 535
#: Clusters of 1, 2, ... 8 blocks that an H200 holds at once, a block on an SM: SMs lie in groups that a cluster cannot leave.
_RESIDENT = (132, 66, 39, 30, 22, 17, 15, 15)
#: What is left of a rate where all of B is asked for twice, which taller tiles need once: measured.
_TWICE = 0.9
#: Numbers of communicating SMs to choose among.
_COMM_SMS = (1, 2, 4, 8, 16, 24, 32)


def best(m, n, k, num_sms, base=None, world=1, lines=(1, 1), plain=False):
    """The configuration expected to be fastest for C[m, n] over depth k.

    A GEMM's time is modelled as waves of tiles over the SMs, each tile costing its depth plus a fixed prologue and epilogue,
    divided by the rate that its shape reaches. One that communicates takes the longer of computing and communicating, plus the
    communication of the last wave, which nothing hides.

    Where 64 elements of a row lie in two lines of L2, an SM may ask for more lines than it gets meanwhile: clusters then share the loads of
    B. Where there are few tiles, blocks share their depth.

    Args:
        num_sms: SMs that a rank may use. base: a configuration whose class and other fields are kept. world: number of ranks.
        lines: of 128 bytes, in which 64 elements of a row of A and of B lie: 1 where rows begin on one, else 2.
        plain: for a kernel that extends Gemm: blocks share no depth, and a storer stores.
    """
    base = base or GemmConfig()
    if not hasattr(base, "comm_sms") or getattr(base, "intra_sm", False):
        alone = len(base.clusters) > 1              # several sizes: a family whose blocks may share tiles
        fields = ranked(m, n, k, num_sms, lines, plain)[0][1] if alone else _fastest(m, n, k, num_sms)[1]
        config = base.replace(**fields).fitted()
        return config.suited(-(-m // config.tile_m) * -(-n // config.tile_n), num_sms, k, world)
    most = max(1, num_sms // 4)

    def time(comm):
        compute, fields = _fastest(m, n, k, max(1, num_sms - comm))
        wave = min(1.0, num_sms * fields["tile_m"] * fields["tile_n"] / (m * n))
        moving = base.traffic(m, n, k, world) / (comm * base.rate)
        return max(compute, moving) + wave * moving
    comm = min((c for c in _COMM_SMS if c <= most), key=time)
    return base.replace(comm_sms=comm, **_fastest(m, n, k, max(1, num_sms - comm))[1])


def hides_adds(k, itemsize):
    """Whether a product of depth k is long enough to hide that its tiles are sent and added at their owner: K >= s R / (2 B).

    A tile of m x n takes 2 m n K / R to compute and s m n / B to send, on the same SMs.
    """
    return 2 * k * _ADD_RATE >= itemsize * _FLOPS


def depth_of(k, ping_pong):
    """Depth that a tile costs: its own, and what its prologue and epilogue take (measured)."""
    return k + (128 if ping_pong else 320)


def ranked(m, n, k, sms, lines=(1, 1), plain=False):
    """[(seconds, fields)] of what a product of one rank may choose on that many SMs, the fastest first. ``plain``: as of ``best``."""
    found = [(_call(m, n, k, sms, lines, *one), one[0]) for one in _alone(sms, lines)]
    if plain:                                                   # a storer stores, by way of panels that may be larger
        found = [(seconds, {**fields, "direct": False, "ahead": 0}) for seconds, fields in found if fields.get("slices", 1) == 1]
    return sorted(found, key=lambda one: one[0])


def _fastest(m, n, k, sms):
    """(seconds, fields) of the fastest tile shape on that many SMs, of families that choose among the usual ones."""
    return min(((_seconds(m, n, k, sms, rate, **fields), fields) for fields, rate in _GEMMS), key=lambda one: one[0])


def _seconds(m, n, k, sms, rate, tile_m, tile_n, ping_pong=False, **_):
    """Seconds of waves of tiles."""
    if tile_m == 64 < m <= 128:
        rate *= _TWICE
    waves = -(-(-(-m // tile_m) * -(-n // tile_n)) // sms)
    return waves * 2 * tile_m * tile_n * depth_of(k, ping_pong) / (rate * _SM_FLOPS)


def _alone(sms, lines):
    """(fields, rate, seconds) of what a product of one rank may choose."""
    yield from _ALONE
    if sms >= 2 and max(lines) > 1:                             # clusters of four leave SMs idle
        for fields, *more in _ALONE:                            # 192 sums in each thread leave no registers for consumers that store
            if fields.get("direct"):
                yield dict(fields, cluster=2, ahead=0, direct=fields["tile_n"] != 192 or "ping_pong" not in fields), *more
    yield from ((dict(fields, slices=s), *more) for fields, *more in _SLICED for s in _SLICES if s <= sms)


def _call(m, n, k, sms, lines, fields, rate, beside):
    """Seconds of a product on one rank: waves of tiles, or its operands from memory, whichever takes longer."""
    tile_m, tile_n, cluster, slices = fields["tile_m"], fields["tile_n"], fields.get("cluster", 1), fields.get("slices", 1)
    if max(lines) > 1:
        rate = min(rate, _SM_LINES / (tile_m * lines[0] + tile_n * lines[1] / cluster) * tile_m * tile_n / (128 * 256))
    if tile_m == 64 < m <= 256:
        rate *= _TWICE if m <= 128 else 0.95
    if (tile_m, tile_n) == (128, 64) and m > 256:               # what many rows of tiles need of A is far more than of B
        rate *= 0.87
    stage, places = fields.get("tile_k", 64), _clusters(sms, cluster) if slices == 1 else sms // slices
    depth, waves = stage * -(-k // (stage * slices)), -(-(-(-m // (tile_m * cluster)) * -(-n // tile_n)) // places)
    tiles = waves * (2 * tile_m * tile_n * depth / (rate * _SM_FLOPS) + beside)
    once, each, element = _ADD_UP
    added = once + each * slices + element * tile_m * tile_n if slices > 1 else 0
    both = tiles, 2 * (m * k + k * n) / _MEMORY
    return _CALL + max(both) + 0.02 * min(both) + waves * added + (_MEET if cluster > 1 else 0)


def _clusters(sms, size):
    """How many clusters are resident at once."""
    return max(1, _RESIDENT[size - 1] * sms // _RESIDENT[0])
