"""The tuner: the model proposes configurations, the hardware decides, and a file keeps what was measured.

Every measurement is a line that is written at once, so a tuner that is killed loses nothing, and one that is started again measures
only what is missing. Nothing here runs unless it is called: an operator reads the file (``config.tuned``), it never tunes.
"""

import json
import time
from itertools import product

import numpy as np

from ..config.choosing import _GEMMS, ranked
from ..config.kept import lines, shape_class, user_file
from ..errors import CompileError, ConfigError, UnsupportedError
from ..interpreter import dtype_of
from ..runtime import DeviceArray, Graph, describe, driver
from .ahead import compile_ahead
from .hardware import H200
from .model import COMM_SMS, _operator, predict

__all__ = ["candidates", "tune", "best_of", "foreign"]

#: How many configurations are tried for a shape, timed rounds of each, seconds that a timed graph takes about, bytes that buffers
#: rotate over.
TRIED, ROUNDS, LENGTH, ROTATE = 10, 15, 1e-3, 512 << 20


#: What is tuned: products of (m, k) and (k, n) arrays.
TUNED = ("gemm", "gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm")


def _tunable(op):
    if op not in TUNED:
        raise ConfigError(f"tune: no operator {op!r}. The tuner knows {', '.join(TUNED)}. Use one of these.", op=op)
    return _operator(op)


def candidates(op, shape, world=1, sms=132, hardware=H200, limit=TRIED, dtype="bfloat16", transposed=True):
    """Configurations worth trying for a shape, the model's favourite first.

    Tile shapes are those that ``config.best`` chooses among; for operators that communicate each comes with the numbers of communicating
    SMs that the model likes best. The favourite also comes with other orders of tiles, and in clusters that share what they load.

    Raises ConfigError for an operator that is not tuned.
    """
    operator, found = _tunable(op), []
    base = operator.config(dtype=dtype, b_transposed=transposed)
    if op == "gemm":
        found = [base.replace(**fields) for _, fields in ranked(*shape, sms)]
    else:
        works = world > 1 and operator.moves[operator.ours](*shape, world, hardware).work
        comms = [c for c in COMM_SMS if c < sms // 2] if works else [None]
        scaled = hardware.replace(sms=sms, tensor=hardware.tensor * sms / hardware.sms)
        for (fields, _), comm in product(_GEMMS, comms):
            config = base.replace(**fields, **({} if comm is None else {"comm_sms": comm}))
            found.append((predict(op, *shape, world, hardware=scaled, config=config, comm_sms=comm or 0).seconds, len(found), config))
        found = [config for *_, config in sorted(found)]
    found = [c for c in found if _valid(c)]
    others = [found[0].replace(group_m=g) for g in (4, 8, 16, 24) if g != found[0].group_m and _tiles(shape, found[0]) > sms]
    if found[0].slices == 1 and _valid(found[0].replace(cluster=2)):
        others.insert(0, found[0].replace(cluster=2))
    if op == "gemm" and (found[0].slices > 1 or min(shape[:2]) <= 256):
        others.insert(0, found[0].replace(stagger=True))
    return (found[:max(1, limit - min(3, len(others)))] + others)[:limit]


def _tiles(shape, config):
    return -(-shape[0] // config.tile_m) * -(-shape[1] // config.tile_n)


def _valid(config):
    try:
        config.check()
    except ConfigError:
        return False
    return True


def tune(world, op, shapes, *, seconds, dtype="bfloat16", transposed=True, file=None, limit=TRIED, say=None, measure=None):
    """Measure configurations of an operator on these shapes and keep what was found. Collective.

    Args:
        world: of GPUs. op: "gemm" or an operator that multiplies and communicates. shapes: of the whole product, (m, n, k) each.
        seconds: start nothing after so long. transposed: B is the transpose of a row-major (N, K) array. file: Path of the results; None:
            this user's. limit: configurations for a shape.
        say: function of a line of text; None: nothing is said. measure: function (world, op, shape, dtype, configs) -> {config: seconds},
            the maximum over ranks; None: on this world's GPUs.

    Returns: {shape: (config, seconds)} of the fastest on every shape for which one was measured, this time or before; the same on
    every rank.

    Raises ConfigError, on every rank, for an unknown operator, no shapes, or a budget in which nothing at all was measured;
    UnsupportedError on the interpreter.
    """
    _tunable(op)
    if not shapes or min(min(s) for s in shapes) < 1:
        raise ConfigError(f"tune: shapes = {shapes}. At least one, each of three positive numbers. Pass other shapes.")
    if measure is None and world.executor != "gpu":
        raise UnsupportedError("tune: the world is interpreted. The hardware decides, so it takes GPUs. Use pknumba.tuning.predict, or a "
                               "world on GPUs.")
    path, end, say = file or user_file(), time.monotonic() + seconds, say or (lambda text: None)
    if path is None:
        raise ConfigError("tune: there is no home directory to keep results in. Results are kept in a file. Set PKNUMBA_TUNING_FILE.")
    key, found = _key(world, op, dtype), {}
    for number, shape in enumerate(shapes):
        known = {c: s for c, s in world.allgather(_known(path, key, shape))[0].items() if c.b_transposed == transposed}
        options = dict(limit=limit, dtype=dtype, transposed=transposed)
        wanted = [c for c in candidates(op, shape, world.size, key["sms"], **options) if c not in known]
        _ready(world, op, wanted if measure is None else [], end)
        for at in range(0, len(wanted), 4):
            if any(world.allgather(time.monotonic() > end)):
                break
            times = (measure or on_gpus)(world, op, shape, dtype, wanted[at:at + 4])
            known |= times
            if world.rank == 0:
                _append(path, key, shape, times)
        if known:
            found[shape] = min(known.items(), key=lambda item: item[1])
            config, best = found[shape]
            done = f"{number + 1} of {len(shapes)}: {op} {'x'.join(map(str, shape))}"
            say(f"{done} {best * 1e6:.1f} us, {len(known)} tried: {_short(config)}")
    if not found:
        raise ConfigError(f"tune: {seconds:g} seconds were over before anything was measured. Compiling takes seconds for each "
                          "configuration. Give more time; what is compiled once stays.", seconds=seconds)
    return found


def _ready(world, op, configs, end):
    """Compile configurations on one rank, the others wait."""
    if configs and world.rank == 0:
        compile_ahead(op, configs, end - time.monotonic())
    world.barrier()


def best_of(path, op=None, given=None):
    """[line] of the fastest configuration of every card, world, operator, shape and dtype in a file, or among given lines.

    Raises ConfigError where there is none (of that operator).
    """
    best = {}
    for r in lines(path) if given is None else given:
        key = r["card"], r["sms"], r["world"], r["op"], tuple(r["shape"]), r["dtype"], r["config"].get("b_transposed")
        if op in (None, r["op"]) and (key not in best or r["us"] < best[key]["us"]):
            best[key] = r
    if not best:
        raise ConfigError(f"tune: {path.name} has no results{f' of {op}' if op else ''}. It is filled by scripts/tune.py. Run that first.")
    return list(best.values())


def of_results(path):
    """Lines of a tuner out of a benchmark's, where it tried several numbers of communicating SMs and kept the fastest: every rank on a
    card of its own."""
    found = []
    for r in map(json.loads, path.read_text().splitlines()):
        tried = [name for name in r.get("medians_us", ()) if name.endswith("comm SMs")]
        if r["op"] in TUNED and len(tried) > 2 and isinstance(r["config"], dict) and r["world"] == r["gpus"] and "H200" in r["card"]:
            found.append(dict(card=r["card"], sms=int(H200.sms), world=r["world"], op=r["op"], dtype=r["dtype"], shape=r["shape"],
                              config=r["config"], us=r["time_us"], when=r["when"]))
    return found


def foreign(path, card):
    """The other cards that a file has results of, if it has none of this one: a file that was copied from another machine."""
    cards = {r["card"] for r in lines(path)}
    return sorted(cards) if cards and card not in cards else []


def _key(world, op, dtype):
    return dict(card=world.card, sms=min(world.allgather(world.num_sms)), world=world.size, op=op, dtype=dtype)


def _known(path, key, shape):
    """{config: seconds} of a shape that the file has, but for what an older version knew and this one does not."""
    kind = _operator(key["op"]).config
    wanted, fields = {**key, "shape": list(shape)}, set(vars(kind()))
    mine = [r for r in lines(path) if all(r[name] == value for name, value in wanted.items()) and set(r["config"]) <= fields]
    return {kind(**r["config"]): r["us"] * 1e-6 for r in mine}


def _append(path, key, shape, times):
    """Add lines, each whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with path.open("a+b") as file:
        if file.tell() and path.read_bytes()[-1:] != b"\n":
            file.write(b"\n")                   # a tuner was killed in the middle of a line
        for config, seconds in times.items():
            line = {**key, "shape": list(shape), "class": list(shape_class(shape)), "config": vars(config), "us": round(seconds * 1e6, 3),
                    "when": when}
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()


def _short(config):
    default = type(config)()
    return ", ".join(f"{k}={v}" for k, v in vars(config).items() if v != getattr(default, k)) or "the default"


def on_gpus(world, op, shape, dtype, configs):
    """{config: seconds of a call}: each result compared with the first one's, then timed in turns; the maximum over ranks. A configuration
    that the assembler refuses, on every rank alike, is left out."""
    sets = _sets(world, op, shape, dtype, configs[0].b_transposed)
    runs, first, estimate = {}, None, max(predict(op, *shape, world.size).seconds, 3e-6)
    batch = max(len(sets), min(64, round(LENGTH / estimate)))
    for config in configs:
        def calls(stream, config=config):
            for i in range(batch):
                call, *arrays = sets[i % len(sets)]
                call(*arrays, config=config, stream=stream)
        try:
            runs[config] = Graph(world, calls)
        except CompileError:
            continue
        mine = _sample(sets[0][-1])
        first = mine if first is None else first
        if not all(world.allgather(bool(np.allclose(mine, first, rtol=0.03, atol=0.03)))):
            raise ConfigError(f"tune: {_short(config)} gives another result of {op} {shape} than {_short(configs[0])}. One of them is "
                              "wrong. Report it.", config=config)
    times = {config: [] for config in runs}
    for _ in range(ROUNDS):
        for config, graph in runs.items():
            world.barrier()
            times[config].append(graph.seconds() / batch)
    for graph in runs.values():
        graph.close()
    everyone = world.allgather(times)
    return {c: float(np.median([max(round_) for round_ in zip(*(each[c] for each in everyone))])) for c in times}


def _sets(world, op, shape, dtype, transposed):
    """Arrays to rotate over, kept until another shape is asked for: what they hold takes longer to make than to multiply."""
    key = op, shape, dtype, transposed
    if world.cache.get("tuned shape", (None,))[0] != key:
        world.cache.pop("tuned shape", None)
        host, count = _numbers(world, op, shape, dtype, transposed), max(1, min(8, ROTATE // (2 * sum(_sizes(shape)))))
        world.cache["tuned shape"] = key, [_arrays(world, op, shape, dtype, transposed, host) for _ in range(count)]
    return world.cache["tuned shape"][1]


def _sizes(shape):
    m, n, k = shape
    return m * k, k * n, m * n


def _numbers(world, op, shape, dtype, transposed):
    """A and B of this rank on the host: random numbers, the same few over and over."""
    (m, n, k), rng, kind = shape, np.random.default_rng(world.rank), dtype_of(dtype)
    rows = len(np.array_split(range(m), world.size)[world.rank]) if op == "all_gather_gemm" else m
    some = rng.standard_normal(1 << 18, dtype=np.float32)
    pairs = (some, (rows, k)), (some[::-1] / np.float32(k**0.5), (n, k) if transposed else (k, n))
    return [np.resize(x.astype(kind), extent) for x, extent in pairs]


def _arrays(world, op, shape, dtype, transposed, host):
    """(function, A, B, out) of this rank."""
    import pknumba
    m, n, _ = shape
    A, B = map(world.asarray, host)
    if transposed:
        B = B.T if hasattr(B, "T") else DeviceArray(B.pointer, B.shape[::-1], B.dtype, B.device, B.strides[::-1], B)
    call, shared = getattr(pknumba, op), op == "gemm_all_reduce"
    more = {"rows": m} if op == "all_gather_gemm" else {}
    out = world.symmetric((m, n), dtype) if shared else call(world, A, B, **more)

    def fire(A, B, out, config, stream):
        return call(world, A, B, out=out, config=config, stream=stream, **more)
    return fire, A, B, out


def _sample(out):
    """The first rows of a result as float32."""
    info = describe(out.local if hasattr(out, "local") else out)
    rows, kind = min(64, info.shape[0]), dtype_of(info.dtype)
    pitch = info.strides[0]
    data = bytes(driver.copy_out(info.pointer, (rows - 1) * pitch + info.shape[1] * kind.itemsize))
    return np.stack([np.frombuffer(data, kind, info.shape[1], row * pitch) for row in range(rows)]).astype(np.float32)
