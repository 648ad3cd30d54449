"""``python -m pknumba COMMAND``: check a kernel, look at this machine, compile ahead of time. Status 0: all is well; 1: something is
not; 2: it could not be run."""

import argparse
import sys


def main(arguments=None):
    """Run a command line; returns the exit status."""
    from .ahead import command as ahead
    from .checking import command as check
    from .doctor import command as doctor
    from .tuning import command as tuning
    parser = argparse.ArgumentParser(prog="python -m pknumba", description="pknumba's commands")
    commands = parser.add_subparsers(dest="command")
    for command in (check, doctor, ahead, tuning):
        command.add(commands)
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help(sys.stderr)
        return 2
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
