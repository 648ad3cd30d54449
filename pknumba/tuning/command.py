"""The command lines ``python -m pknumba timeline OP`` and ``python -m pknumba explain OP``."""

import argparse
import os
import sys
from pathlib import Path

from ..checking import timeline
from ..errors import ConfigError, PknumbaError
from .hardware import H100_PAPER, H200
from .model import explain, predict
from .moves import OPERATORS
from .picture import draw, load
from .record import record
from .simulate import SIMULATED, call_of, simulate
from ..screen import Waiting

CARDS = {"h200": H200, "h100": H100_PAPER}

_ABOUT = """Runs one call of an operator on the interpreter in virtual time: each operation costs what it does on the card, contention for
tensor cores, memory and links included. No GPU is needed, and no values are computed."""


def add(commands):
    """Add the sub-commands."""
    play = commands.add_parser("timeline", help="what every role of every SM does, and how long a call takes, without a GPU",
                               description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter)
    tell = commands.add_parser("explain", help="what a call costs by the cost model, and why",
                               description="The terms of the cost model for one call, where its constants come from, and which schedule "
                               "it prefers.")
    for parser, known in ((play, SIMULATED), (tell, OPERATORS)):
        parser.add_argument("op", metavar="OP", nargs="?" if parser is play else None, choices=list(known), help=", ".join(known))
        for size in "mnk":
            parser.add_argument(f"--{size}", type=_positive, default=1024, help="of the product (1024)")
        parser.add_argument("--world", type=_positive, default=1, help="number of ranks (1)")
        parser.add_argument("--card", choices=list(CARDS), default="h200")
    play.add_argument("--sms", type=_positive, help="SMs of a rank (its part of the card)")
    play.add_argument("--ranks-per-card", type=_positive, default=1, help="ranks that share a card, as under MPS (1)")
    play.add_argument("--json", type=Path, metavar="FILE", help="write the timeline for Perfetto (ui.perfetto.dev)")
    play.add_argument("--png", type=Path, metavar="FILE", help="write a picture of some lanes")
    play.add_argument("--window", type=float, nargs=2, metavar=("FROM", "TO"), help="draw these microseconds only")
    play.add_argument("--gpu", action="store_true", help="run it on GPUs, one rank of mpirun each, and record what roles do")
    play.add_argument("--waits", action="store_true", help="with --gpu: waits for semaphores too, which lengthens the call by 1 to 10 %%")
    play.add_argument("--load", type=Path, metavar="FILE", help="draw a timeline that was written as JSON, instead of a call")
    play.set_defaults(run=_timeline)
    tell.add_argument("--schedule", help="another schedule than the operator's own")
    tell.set_defaults(run=_explain)


def _positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def _explain(options):
    try:
        print(explain(options.op, options.m, options.n, options.k, options.world, hardware=CARDS[options.card], schedule=options.schedule))
    except PknumbaError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


def _recorded(options):
    """The timeline of a call on GPUs; rank 0 writes it."""
    os.environ["PKNUMBA_TIMELINE"] = "waits" if options.waits else "1"
    from ..runtime import World
    with World.mpi(executor="gpu") as world:
        events = record(world, call_of(world, options.op, options.m, options.n, options.k))
        if world.rank == 0:
            last = max((e.end for e in events), default=0)
            title = f"{options.op} {options.m} x {options.n} x {options.k} on {world.size} ranks, on GPUs: {last / 1e3:.1f} us"
            print(f"{title} from the first interval to the last ({len(events)} intervals)")
            _write(options, events, title)
    return 0


def _write(options, events, title):
    if options.json:
        options.json.write_text(timeline.chrome(events, per_us=1000))
    if options.png:
        draw(events, options.png, title, window=options.window)
    if options.json or options.png:
        print("written: " + ", ".join(str(p) for p in (options.json, options.png) if p))


def _timeline(options):
    try:
        if options.load:
            _write(options, load(options.load), options.load.stem)
            return 0
        if options.op is None:
            raise ConfigError(f"timeline: of which operator? It knows {', '.join(SIMULATED)}. Name one, or a file with --load.")
        return _recorded(options) if options.gpu else _simulated(options)
    except (PknumbaError, OSError) as error:
        print(f"{type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2


def _simulated(options):
    card, sizes = CARDS[options.card], (options.m, options.n, options.k)
    with Waiting(f"{options.op} in virtual time"):
        found = simulate(options.op, *sizes, options.world, hardware=card, num_sms=options.sms, ranks_per_card=options.ranks_per_card,
                         trace="time" if options.json or options.png else False)
    title = f"{options.op} {options.m} x {options.n} x {options.k} on {options.world} ranks, {card.name}: {found.seconds * 1e6:.1f} us"
    print(f"{title} in virtual time ({found.switches} switches)")
    print("busiest: " + ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in found.busiest()))
    if options.op in OPERATORS and options.ranks_per_card == 1:
        print(f"cost model: {predict(options.op, *sizes, options.world, hardware=card).seconds * 1e6:.1f} us")
    _write(options, found.events, title)
    return 0
