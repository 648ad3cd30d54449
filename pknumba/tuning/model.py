"""How long a product that communicates takes: T = launch + max(compute, memory, communication) + exposed + sync.

The form is that of the ParallelKittens paper (section 3.1.1). Nothing here is fitted to what it predicts: rates are constants of
``hardware``, bytes follow from what a schedule moves (``moves``), and what stays exposed follows from the order of the schedule:

- *after* (tiles are sent when they are computed): the first tiles are computed while nothing can be sent, the last are sent while
  nothing is computed.
- *before* (operands come from peers): the last tiles are computed when nothing comes any more.
- *own last*: as "after", but the tiles that a rank keeps come at the end, with the link idle: only the others hide what is sent.
"""

from dataclasses import dataclass

from ..config import GemmConfig, best
from ..config.choosing import _GEMMS, depth_of
from ..errors import ConfigError
from .hardware import H200
from .moves import OPERATORS, Moves

__all__ = ["Prediction", "predict", "best_comm_sms", "prefer", "hiding_depth", "explain"]

#: Numbers of communicating SMs that are tried.
COMM_SMS = (1, 2, 4, 8, 16, 24, 32, 40, 48)


@dataclass(frozen=True)
class Prediction:
    """Seconds of a call of one operator, and what they are made of.

    Attributes:
        op, shape, world, hardware, schedule, config: what is predicted. comm_sms: SMs that only communicate.
        launch, compute, memory, communication, exposed, sync: terms of the sum; compute is on the SMs that compute.
        alone: seconds of the product alone, on all SMs.
        moves: what is moved.
    """

    op: str
    shape: tuple
    world: int
    hardware: object
    schedule: str
    config: object
    comm_sms: int
    launch: float
    compute: float
    memory: float
    communication: float
    exposed: float
    sync: float
    alone: float
    moves: object

    @property
    def seconds(self):
        """The whole call."""
        return self.launch + max(self.compute, self.memory, self.communication) + self.exposed + self.sync

    @property
    def exposed_share(self):
        """Share of the call that the product alone would not take."""
        return max(0.0, 1 - self.alone / self.seconds)

    @property
    def tflops(self):
        """10^12 floating-point operations of one rank per second."""
        m, n, k = self.shape
        return 2 * m * n * k / self.seconds / 1e12

    @property
    def bound(self):
        """Which of the three decides: "compute", "memory" or "communication"."""
        return max(("compute", "memory", "communication"), key=lambda name: getattr(self, name))


def _share(config):
    """Share of the tensor cores' rate that tiles of that shape reach: that of the nearest shape that was measured."""
    def distance(item):
        fields = item[0]
        area = abs(fields["tile_m"] * fields["tile_n"] - config.tile_m * config.tile_n)
        return area, fields.get("ping_pong", False) != config.ping_pong, abs(fields["tile_m"] - config.tile_m)
    return min(_GEMMS, key=distance)[1]


def _waves(m, n, config, sms):
    return -(-(-(-m // config.tile_m) * -(-n // config.tile_n)) // sms)


def compute_seconds(m, n, k, config, sms, hardware):
    """Seconds of the tensor cores of that many SMs: whole waves of tiles, each with its prologue and epilogue."""
    tile = 2 * config.tile_m * config.tile_n * depth_of(k, config.ping_pong)
    return _waves(m, n, config, sms) * tile / (_share(config) * hardware.tensor / hardware.sms)


def memory_bytes(m, n, k, config, sms):
    """Bytes of memory that a product takes: C once, and for each wave the rows of A and columns of B that its tiles share in the L2."""
    rows = min(config.group_m, -(-m // config.tile_m))
    cols = -(-min(sms, rows * -(-n // config.tile_n)) // rows)
    wave = (min(m, rows * config.tile_m) + min(n, cols * config.tile_n)) * k * 2
    return max(2 * (m * k + k * n), _waves(m, n, config, sms) * wave) + 2 * m * n


def hiding_depth(hardware=H200, copies=1, itemsize=2):
    """K from which on a product hides sending ``copies`` of each tile: K >= s R / (2 B), with the tile's size cancelled.

    An m x n tile takes 2 m n K / R to compute and s m n copies / B to send.
    """
    return itemsize * copies * hardware.tensor / (2 * hardware.link)


def prefer(op, k, world, hardware=H200):
    """"intra" where the SMs that compute should send their tiles themselves, "inter" where other SMs should communicate."""
    operator = _operator(op)
    if operator.sends is None:
        return operator.ours
    depth, copies = operator.sends(k, world)
    return "intra" if depth >= hiding_depth(hardware, copies) else "inter"


def _operator(op):
    if op not in OPERATORS:
        raise ConfigError(f"tuning: no operator {op!r}. The model knows {', '.join(OPERATORS)}. Use one of these.", op=op)
    return OPERATORS[op]


def predict(op, m, n, k, world=1, *, hardware=H200, schedule=None, config=None, comm_sms=None):
    """The Prediction of one call.

    Args:
        op: name of a public function. m, n, k: the product of one rank (all rows of A for all_gather_gemm). world: number of ranks, each
            on a card of its own.
        schedule: of ``OPERATORS[op].moves``; this repository's by default: with ``comm_sms``, "inter".
        config: tile shapes; chosen by ``config.best`` by default. comm_sms: SMs that communicate; the best number by default.

    Raises ConfigError for an operator or a schedule that does not exist, or a shape without elements.
    """
    operator = _operator(op)
    schedule = schedule or ("inter" if comm_sms and "inter" in operator.moves else operator.ours)
    if schedule not in operator.moves:
        raise ConfigError(f"tuning: {op} has no schedule {schedule!r}. There are {', '.join(operator.moves)}. Use one of these.", op=op)
    if min(m, n, k, world) < 1:
        raise ConfigError(f"tuning: {op} of {m} x {n} x {k} on {world} ranks. All are at least 1. Pass other numbers.", op=op)
    moves = operator.moves[schedule](m, n, k, world, hardware) if world > 1 else Moves(0, "tma", order="apart")
    if world == 1:
        schedule, comm_sms = "alone", 0
    elif not moves.work:
        comm_sms = 0
    choices = COMM_SMS if comm_sms is None else (comm_sms,)
    return min((_predict(op, (m, n, k), world, hardware, schedule, config, c, moves) for c in choices), key=lambda p: p.seconds)


def _predict(op, shape, world, hw, schedule, config, comm, moves):
    (m, n, k), sms = shape, int(hw.sms)
    if not 0 <= comm < sms:
        raise ConfigError(f"tuning: comm_sms = {comm} of {sms} SMs. At least one must compute. Use fewer.", comm_sms=comm)
    plain = config or best(m, n, k, sms, GemmConfig())
    config = config or best(m, n, k, sms - comm, GemmConfig())
    compute, own = _product(op, shape, config, sms - comm, hw)
    memory = own + moves.memory / hw.memory
    alone = hw.launch_s + max(_product(op, shape, plain, sms, hw))
    communication = moves.link / getattr(hw, moves.by)
    if moves.work:
        communication = max(communication, moves.work / (comm * moves.rate))
    busiest, waves = max(compute, memory, communication), moves.steps or _waves(m, n, config, sms - comm)
    exposed = _whole(moves.order, max(compute, memory), communication, waves, world) - busiest
    launches = 2 if moves.order == "apart" and world > 1 else 1
    hops = 0 if world == 1 else hw.hop_s * (moves.work > 0) + 2 * hw.peer_s
    return Prediction(op, shape, world, hw, schedule, config, comm, launches * hw.launch_s, compute, memory, communication, exposed, hops,
                      alone, moves)


def _product(op, shape, config, sms, hw):
    """(seconds of the tensor cores, seconds of the memory) of what an operator computes."""
    (m, n, k), share = shape, OPERATORS[op].share
    if share:
        return 2 * m * n * k / (share * hw.tensor * sms / hw.sms), 4 * m * k / hw.memory
    return compute_seconds(m, n, k, config, sms, hw), memory_bytes(m, n, k, config, sms) / hw.memory


def _whole(order, compute, communication, waves, world):
    """Seconds of both in that order."""
    if order == "apart":
        return compute + communication
    if order == "before":
        return max(compute, communication + compute / waves)
    if order == "own last":
        return max(compute * (world - 1) / world, communication + compute / waves) + compute / world
    return max(compute + communication / waves, communication + compute / waves)


def best_comm_sms(op, m, n, k, world, hardware=H200):
    """How many SMs should communicate; 0 where those that compute do it, or nothing is sent."""
    return predict(op, m, n, k, world, hardware=hardware).comm_sms


def explain(op, m, n, k, world=1, *, hardware=H200, **options):
    """The Prediction in words: each term, where its constants come from, and why this schedule. ``options``: of ``predict``."""
    p = predict(op, m, n, k, world, hardware=hardware, **options)
    where = f", {p.comm_sms} of {int(hardware.sms)} SMs communicate" if p.comm_sms else ""
    sms, c, share = int(hardware.sms) - p.comm_sms, p.config, OPERATORS[op].share
    tiles = f"{share:.0%} of the rate" if share else f"{_waves(m, n, c, sms)} waves of {c.tile_m} x {c.tile_n} tiles"
    lines = [f"{op} {m} x {n} x {k} on {world} rank{'s' * (world > 1)}, {hardware.name}: {_time(p.seconds)}, {p.tflops:.0f} TFLOP/s, "
             f"schedule {p.schedule}{where}",
             f"  launch         {_time(p.launch)}",
             f"  compute        {_time(p.compute)}   {tiles} on {sms} SMs, {hardware.tensor / 1e12:.0f} TFLOP/s ({hardware.tensor.source})",
             f"  memory         {_time(p.memory)}   at {hardware.memory / 1e9:.0f} GB/s ({hardware.memory.source})"]
    if world > 1:
        rate = getattr(hardware, p.moves.by)
        lines.append(f"  communication  {_time(p.communication)}   {p.moves.link / 1e9:.3g} GB over the link at {rate / 1e9:.0f} GB/s "
                     f"({rate.source})")
        if p.moves.work:
            lines.append(f"{'':27}{p.moves.work / 1e9:.3g} GB by {p.comm_sms} SMs at {p.moves.rate / 1e9:.3g} GB/s each")
        lines += [f"  exposed        {_time(p.exposed)}   order: {p.moves.order}", f"  sync           {_time(p.sync)}"]
    lines.append(f"{p.bound} decides; {100 * p.exposed_share:.0f} % of the call is not the product ({_time(p.alone).strip()} alone).")
    return "\n".join([*lines, *(_why(op, k, world, hardware, p) if world > 1 else [])])


def _why(op, k, world, hardware, p):
    """Which schedule is preferred, and why."""
    operator = OPERATORS[op]
    if operator.sends is None:
        return []
    (depth, copies), choice = operator.sends(k, world), prefer(op, k, world, hardware)
    limit, times = hiding_depth(hardware, copies), f"{copies} times s" if copies > 1 else "s"
    text = f"Each element sent is worth a depth of {depth}; {times} R / (2 B) = {limit:.0f} would hide it: {choice}-SM"
    others = {s: predict(op, *p.shape, world, hardware=hardware, schedule=s).seconds for s in operator.moves}
    ranked = ", ".join(f"{s} {_time(t).strip()}" for s, t in sorted(others.items(), key=lambda item: item[1]))
    return [text + " overlap.", f"  by schedule: {ranked}"]


def _time(seconds):
    return f"{seconds * 1e3:8.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:8.2f} us"
