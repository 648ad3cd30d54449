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
#: Widths between those, for products of one rank that they cut into few waves.
_BETWEEN = (
    (dict(tile_m=128, tile_n=144, stages=6, c_stages=2, ping_pong=True), 0.90),
    (dict(tile_m=128, tile_n=176, stages=5, c_stages=2, ping_pong=True), 0.94),
)
#: Tiles whose depth a cluster may share, and their rates.
_SPLITS = (
    (dict(tile_m=128, tile_n=128, stages=6, c_stages=1, split_k=True), 0.79),
    (dict(tile_m=64, tile_n=128, stages=8, c_stages=1, consumers=1, split_k=True), 0.55),
    (dict(tile_m=64, tile_n=64, stages=12, c_stages=1, consumers=1, split_k=True), 0.5),
)
#: Seconds in which the blocks of a cluster meet, first and last, and in which those that share a depth add up: measured likewise.
_MEET, _ADD_UP = 0.9e-6, 2e-6

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
#: Numbers of communicating SMs to choose among.
_COMM_SMS = (1, 2, 4, 8, 16, 24, 32)


def best(m, n, k, num_sms, base=None, world=1, lines=(1, 1)):
    """The configuration expected to be fastest for C[m, n] over depth k.

    A GEMM's time is modelled as waves of tiles over the SMs, each tile costing its depth plus a fixed prologue and epilogue,
    divided by the rate that its shape reaches. One that communicates takes the longer of computing and communicating, plus the
    communication of the last wave, which nothing hides.

    Where 64 elements of a row lie in two lines of L2, an SM may ask for more lines than it gets meanwhile: clusters then share the loads of
    B. Where there are few tiles, clusters share their depth.

    Args:
        num_sms: SMs that a rank may use. base: a configuration whose class and other fields are kept. world: number of ranks.
        lines: of 128 bytes, in which 64 elements of a row of A and of B lie: 1 where rows begin on one, else 2.
    """
    base = base or GemmConfig()
    if not hasattr(base, "comm_sms") or getattr(base, "intra_sm", False):
        return base.replace(**_fastest(m, n, k, num_sms, lines, base.clusters)[1]).fitted()
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


def _fastest(m, n, k, sms, lines=(1, 1), clusters=(1,)):
    """(seconds, fields) of the fastest tile shape and cluster on that many SMs."""
    found = [(_seconds(m, n, k, sms, lines, rate, **fields), fields) for fields, rate in _variants(sms, lines, clusters)]
    return min(found, key=lambda one: one[0])


def _variants(sms, lines, clusters):
    """(fields, rate) of what may be fastest, simple ones first."""
    yield from _GEMMS
    if 2 in clusters and sms >= 2 and max(lines) > 1:           # clusters of four leave SMs idle
        yield from ((dict(fields, cluster=2), rate) for fields, rate in _GEMMS)
    if len(clusters) > 1:
        yield from _BETWEEN
        yield from ((dict(fields, cluster=c), rate) for fields, rate in _SPLITS for c in range(2, min(sms // 16, 8) + 1))


def _seconds(m, n, k, sms, lines, rate, tile_m, tile_n, cluster=1, split_k=False, ping_pong=False, **_):
    """Seconds of waves of tiles."""
    rows, depths = (1, cluster) if split_k else (cluster, 1)
    if max(lines) > 1:
        rate = min(rate, _SM_LINES / (tile_m * lines[0] + tile_n * lines[1] / rows) * tile_m * tile_n / (128 * 256))
    if tile_m == 64 < m <= 128:
        rate *= 0.9                             # all of B is asked for twice, which taller tiles need once: measured
    waves = -(-(-(-m // (tile_m * rows)) * -(-n // tile_n)) // _clusters(sms, cluster))
    work = 2 * tile_m * tile_n * depth_of(-(-k // depths), ping_pong)
    return waves * (work / (rate * _SM_FLOPS) + (_ADD_UP if split_k else 0)) + (_MEET if cluster > 1 else 0)


def _clusters(sms, size):
    """How many clusters are resident at once."""
    return max(1, _RESIDENT[size - 1] * sms // _RESIDENT[0])
