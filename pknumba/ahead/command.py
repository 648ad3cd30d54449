"""The command line ``python -m pknumba compile``."""

import argparse
import sys
import time

from .plans import ARCHITECTURES, known_dtypes, recorded, wanted
from .. import lowering
from ..checking.command import _field, _positive
from ..checking.source import load
from ..errors import ConfigError, PknumbaError
from ..lowering import bundle
from ..screen import Bar

_ABOUT = """Compiles kernels, without a GPU, into one file that a machine without numba runs: set PKNUMBA_BUNDLE to it there.
KERNEL is the name of an operator (gemm_all_reduce) or file.py:Class. Which configurations: those that calls of these --size choose;
without a size all that ship; or what a program used that ran under PKNUMBA_RECORD=FILE."""


def add(commands):
    """Add the sub-command ``compile``."""
    parser = commands.add_parser("compile", help="compile kernels ahead of time", description=_ABOUT,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", metavar="KERNEL", nargs="*")
    parser.add_argument("--arch", default="sm_90a", help="sm_90a (H100, H200), the only one yet")
    parser.add_argument("--out", default="kernels.pkb", metavar="FILE", help="the bundle (default kernels.pkb)")
    parser.add_argument("--recorded", metavar="FILE", help="what a program wanted that ran under PKNUMBA_RECORD=FILE")
    which = parser.add_argument_group("which configurations")
    which.add_argument("--dtype", nargs="+", choices=known_dtypes(), default=["bfloat16"])
    which.add_argument("--size", type=_positive, nargs=3, metavar=("M", "N", "K"), action="append", default=[],
                       help="of a product; repeatable")
    which.add_argument("--world", type=_positive, nargs="+", default=[1, 2], help="numbers of ranks (default 1 2)")
    which.add_argument("--sms", type=_positive, nargs="+", default=[132], help="SMs that a rank will have: of a whole H100 or H200 132 "
                       "(default), of one that two ranks share 66")
    which.add_argument("--op", nargs="+", choices=["sum", "min", "max"], default=["sum"], help="of reductions")
    which.add_argument("--set", metavar="FIELD=VALUE", nargs="+", default=[], action="extend", type=_field,
                       help="fields of the one configuration to compile")
    parser.set_defaults(run=run)


def run(options):
    """Run the sub-command; returns the exit status."""
    try:
        plans = _plans(options)
        built, start = [], time.monotonic()
        for kernel, cfg in Bar.over(plans, "kernels"):
            cfg.check()
            built.append((kernel, cfg, *lowering.build(kernel.plan(cfg))))
        count = bundle.write(options.out, built, options.arch)
    except (PknumbaError, TypeError, OSError) as error:
        print(f"{type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1 if getattr(error, "report", None) else 2
    size = sum(len(cubin) for _, _, cubin, _ in built)
    print(f"{options.out}: {count} kernels for {options.arch}, {size / 1e6:.1f} MB of code, {time.monotonic() - start:.1f} s")
    return 0


def _plans(options):
    if options.arch not in ARCHITECTURES:
        raise ConfigError(f"compile: no architecture {options.arch}. Kernels use wgmma, which only sm_90a has. Use --arch sm_90a.")
    if bool(options.kernels) == bool(options.recorded):
        raise ConfigError("compile: nothing to do. Name kernels, or a file by --recorded, not both. See --help.")
    if options.recorded:
        return recorded(options.recorded)
    found = {}
    for name in options.kernels:
        for sms in options.sms:
            more = wanted(load(name), dtypes=options.dtype, sizes=options.size, worlds=options.world, sms=sms, ops=options.op,
                          changes=dict(options.set))
            found.update(dict.fromkeys(more))
    return list(found)
