"""``python -m pknumba COMMAND``: check a kernel without a GPU. Status 0: nothing found; 1: something was; 2: it could not be run."""

import argparse
import sys


def main(arguments=None):
    """Run a command line; returns the exit status."""
    from .checking import command
    parser = argparse.ArgumentParser(prog="python -m pknumba", description="pknumba's commands")
    commands = parser.add_subparsers(dest="command", required=True)
    command.add(commands)
    options = parser.parse_args(arguments)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
