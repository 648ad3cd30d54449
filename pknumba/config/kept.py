"""Configurations that were measured to be best: those that ship, and those of this user's tuner. Read only; the tuner writes.

A file has a JSON object on each line: card, sms, world, op, shape [m, n, k], dtype, config {field: value}, us. A line of the user's
file goes before a shipped one. A shape without a line of its own takes that of the nearest shape of its class; a product of one rank only
if it is cut into as many tiles, since one more may be a wave more, and the model knows.
"""

import json
import math
import os
import zlib
from pathlib import Path

from ..errors import ConfigError

__all__ = ["tuned", "tuned_state", "shape_class", "user_file", "lines"]

#: The configurations that ship.
SHIPPED = Path(__file__).with_name("tuned.json")
_FIELDS = {"card", "sms", "world", "op", "shape", "dtype", "config", "us"}
_read = {}


def user_file():
    """This user's file: PKNUMBA_TUNING_FILE, else pknumba/tuning.jsonl under XDG_DATA_HOME or ~/.local/share; None without a home."""
    chosen = os.environ.get("PKNUMBA_TUNING_FILE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_DATA_HOME") or (os.path.join(os.environ["HOME"], ".local", "share") if os.environ.get("HOME") else None)
    return Path(base) / "pknumba" / "tuning.jsonl" if base else None


def shape_class(shape):
    """Shapes that share a configuration: every extent to the nearest power of the square root of 2."""
    return tuple(round(2 * math.log2(max(n, 1))) for n in shape)


def lines(path):
    """The lines of a file, read once for each state of it; [] where there is none. What a killed tuner left half written is passed over.

    Raises ConfigError for a line that is complete and none of a tuner's.
    """
    try:
        stat = path.stat()
    except OSError:
        return []
    state = stat.st_mtime_ns, stat.st_size
    if _read.get(path, (None,))[0] != state:
        found = []
        for number, text in enumerate(path.read_text(errors="replace").splitlines(), 1):
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if not isinstance(line, dict) or not _FIELDS <= set(line):
                raise ConfigError(f"{path.name}: line {number} is no result of a tuner. It has {', '.join(sorted(_FIELDS))}. Remove "
                                  "the line or the file.", line=number)
            found.append(line)
        _read[path] = state, found
    return _read[path][1]


def tuned(op, card, sms, world, shape, dtype, transposed=True):
    """{field: value} of the configuration that was fastest for a shape, or for the nearest of its class; None if none was measured.

    PKNUMBA_TUNED=0 passes over all of them.

    Args:
        op: name of the public function. card: name of the GPU; None (interpreter): none was measured. sms: that a rank may use.
        world: number of ranks. shape: (m, n, k). transposed: whether B is the transpose of a row-major (N, K) array.
    """
    if card is None or os.environ.get("PKNUMBA_TUNED", "1") in ("", "0"):
        return None
    for path in filter(None, (user_file(), SHIPPED)):
        near = [r for r in lines(path) if (r["op"], r["card"], r["sms"], r["world"], r["dtype"]) == (op, card, sms, world, dtype)
                and shape_class(r["shape"]) == shape_class(shape) and r["config"].get("b_transposed", transposed) == transposed
                and (op != "gemm" or _tiles(r, shape) == _tiles(r, r["shape"]))]
        if near:
            return min(near, key=lambda r: (_distance(r["shape"], shape), r["us"]))["config"]
    return None


def tuned_state(op, card, world, shape, dtype):
    """Text that is equal on two ranks only if ``tuned`` says the same to both; "none" where nothing was measured."""
    found = [r for path in filter(None, (user_file(), SHIPPED)) for r in (lines(path) if card else ())
             if (r["op"], r["world"], r["dtype"]) == (op, world, dtype) and shape_class(r["shape"]) == shape_class(shape)]
    used = os.environ.get("PKNUMBA_TUNED", "1") not in ("", "0")
    return f"{len(found)} for {card}: {zlib.crc32(json.dumps(found).encode()):08x}" if found and used else "none"


def _tiles(line, shape):
    """Rows and columns of tiles of a shape by a line's configuration."""
    return tuple(-(-extent // line["config"][tile]) for extent, tile in zip(shape, ("tile_m", "tile_n")))


def _distance(a, b):
    return sum(abs(math.log(x / y)) for x, y in zip(a, b))
