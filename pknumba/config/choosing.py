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


#: FLOP/s of one SM that multiplies at rate 1: measured on an H200, benchmarks/results/gemm.jsonl.
_SM_FLOPS = 5.3e12
#: FLOP/s of an H200 on large products, and bytes per second that its bulk copies add at a peer over NVLink: measured,
#: benchmarks/results/gemm.jsonl and micro.jsonl.
_FLOPS, _ADD_RATE = 7.1e14, 3.25e11
#: Numbers of communicating SMs to choose among.
_COMM_SMS = (1, 2, 4, 8, 16, 24, 32)


def best(m, n, k, num_sms, base=None, world=1):
    """The configuration expected to be fastest for C[m, n] over depth k.

    A GEMM's time is modelled as waves of tiles over the SMs, each tile costing its depth plus a fixed prologue and epilogue,
    divided by the rate that its shape reaches. One that communicates takes the longer of computing and communicating, plus the
    communication of the last wave, which nothing hides.

    Args:
        num_sms: SMs that a rank may use. base: a configuration whose class and other fields are kept. world: number of ranks.
    """
    base = base or GemmConfig()
    if not hasattr(base, "comm_sms"):
        return base.replace(**_fastest(m, n, k, num_sms)[1])
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


def _fastest(m, n, k, sms):
    """(seconds, fields) of the fastest tile shape on that many SMs."""
    def time(fields, rate):
        tiles = -(-m // fields["tile_m"]) * -(-n // fields["tile_n"])
        depth = depth_of(k, fields.get("ping_pong"))
        return -(-tiles // sms) * 2 * fields["tile_m"] * fields["tile_n"] * depth / (rate * _SM_FLOPS)
    return min(((time(fields, rate), fields) for fields, rate in _GEMMS), key=lambda found: found[0])
