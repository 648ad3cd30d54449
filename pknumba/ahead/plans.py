"""Which kernels a program may need: listed from shapes, from what ships, or from what a run has recorded."""

import importlib
import inspect
import json
import sys

from .. import config as configs
from .. import kernels
from ..config import kept
from ..config.choosing import _ALONE, _GEMMS
from ..errors import ConfigError
from ..templates import Comm
from ..tiles import ITEMSIZE

__all__ = ["wanted", "recorded", "frozen"]

#: The only architecture that kernels are compiled for.
ARCHITECTURES = ("sm_90a",)


def frozen(cfg):
    """The configuration that is compiled: fields that a launch passes as numbers do not matter."""
    return cfg.replace(**{name: 1 for name in cfg.runtime})


def wanted(kernel, *, dtypes=("bfloat16",), sizes=(), worlds=(1,), sms=132, ops=("sum",), changes=None):
    """[(kernel, configuration)] that calls of an operator may need.

    Raises ConfigError for an operator whose configurations follow from more than these arguments.

    Args:
        kernel: class. dtypes: of its arrays. worlds: numbers of ranks.
        sizes: (m, n, k) of products, each with the configuration that a call chooses on ``sms`` SMs; none: all that ship.
        ops: of reductions. changes: fields of the configuration, which then is the only one.
    """
    changes = changes or {}
    if issubclass(kernel, Comm):
        try:
            return [(k, frozen(cfg)) for k, cfg in _communicating(kernel, dtypes, ops, changes)]
        except TypeError as why:
            raise _unlisted(kernel) from why
    if not issubclass(kernel.config, configs.GemmConfig) or issubclass(kernel.config, (configs.GroupedGemmConfig, configs.MoeConfig)):
        if not changes:
            raise _unlisted(kernel)
        return [(kernel, frozen(kernel.config(**{**({"dtype": dtype} if hasattr(kernel.config, "dtype") else {}), **changes})))
                for dtype in dtypes]
    found = {}
    for world in worlds:
        which = kernel.alone if world == 1 and kernel.alone else kernel
        for cfg in _products(which, sizes, sms, world, changes):
            for dtype in dtypes:
                for transposed in (False, True) if "b_transposed" not in changes else (cfg.b_transposed,):
                    found[which.for_config(cfg), frozen(cfg.replace(dtype=dtype, b_transposed=transposed))] = True
    return list(found)


def _unlisted(kernel):
    return ConfigError(f"compile: {kernel.__name__}: its configurations follow from more than shapes of a product. Those that a program "
                       "uses can be recorded. Run it once under PKNUMBA_RECORD=FILE and pass --recorded FILE, or give one configuration by "
                       "--set.")


def _products(kernel, sizes, sms, world, changes):
    if changes:
        known = {name: value for name, value in changes.items() if hasattr(kernel.config(), name)}
        return [kernel.config(**known)]
    usual = kernel.defaults()
    tuned = [usual.replace(**fields) for fields in _tuned(kernel, sizes, sms, world)]
    if not sizes:
        alone = () if kernel.plain() else _ALONE
        return [usual, *(usual.replace(**fields) for fields, *_ in (*_GEMMS, *alone)), *tuned]
    lines = [(1, 1)] if kernel.communicates() else [(a, b) for a in (1, 2) for b in (1, 2)]        # rows that do not begin on a line
    return [*(configs.best(m, n, k, sms, usual, world, line, kernel.plain()) for m, n, k in sizes for line in lines), *tuned]


def _tuned(kernel, sizes, sms, world):
    """Fields of what was measured to be fastest for these shapes (none: for any), on whatever card, here or before it was shipped."""
    name = "".join("_" + c.lower() if c.isupper() else c for c in kernel.__name__).strip("_")
    classes = {kept.shape_class(size) for size in sizes}
    return [line["config"] for path in filter(None, (kept.user_file(), kept.SHIPPED)) for line in kept.lines(path)
            if (line["op"], line["sms"], line["world"]) == (name, sms, world)
            and (not sizes or kept.shape_class(line["shape"]) in classes)]


def _communicating(kernel, dtypes, ops, changes):
    """Every variant of a collective: its class's and those that its module keeps for other calls."""
    module = sys.modules[kernel.__module__]
    variants = [c for c in vars(module).values()
                if inspect.isclass(c) and issubclass(c, Comm) and c.operator == kernel.operator and c.__module__ == module.__name__]
    reduces = "op" in inspect.signature(getattr(kernels, kernel.operator)).parameters if hasattr(kernels, kernel.operator) else False
    for variant in variants:
        copies = {tuple(variant.copies(x, y).items()) for x in (False, True) for y in (False, True)}
        for dtype in dtypes:
            for op in ops if reduces else ("sum",):
                for unroll in sorted({variant.most, variant.most // 4, variant.config().unroll}):
                    for copy in sorted(copies):
                        yield variant, variant.config(**{"dtype": dtype, "op": op, "unroll": max(unroll, 1), **dict(copy), **changes})


def recorded(path):
    """[(kernel, configuration)] of a file that PKNUMBA_RECORD made. Raises ConfigError for one that cannot be used."""
    found = {}
    try:
        with open(path) as f:
            for line in f:
                said = json.loads(line)
                found[_named(*said["kernel"]), _named(*said["config"])(**said["fields"])] = True
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as why:
        raise ConfigError(f"compile: {path} cannot be used ({why}). It is a file that a program wrote under PKNUMBA_RECORD, whose kernels "
                          "can be imported here. Record it anew, or set PYTHONPATH.") from None
    return list(found)


def _named(module, name):
    thing = importlib.import_module(module)
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing


def known_dtypes():
    """Names of the dtypes that some kernel takes."""
    return sorted(ITEMSIZE)
