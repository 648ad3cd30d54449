"""What this card reaches at most, by the vendor's own means: a copy, a product, and a copy to the next GPU.

    python benchmarks/roofs.py

``protocol.roofs()`` measures the same once in a run and adds it to the run's lines.
"""

import sys

import protocol


def main():
    """Measure and write a line each. Returns the exit status."""
    args = protocol.options(__doc__, "roofs.jsonl").parse_args()
    for name, (value, unit, times, shape) in protocol.measured_roofs(args.rounds).items():
        protocol.write(args.out, f"roof: {name}", shape, "bfloat16", times, **{unit: round(value, 1)})
        print(f"    {value:.1f} {unit}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
