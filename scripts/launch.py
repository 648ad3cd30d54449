"""How the scripts start and end: under mpirun, torchrun or alone, one line per problem, an exit status that says what happened."""

import argparse
import os
import sys
import traceback

import numpy as np

from pknumba import World, errors

#: Whether torchrun started this process.
TORCHRUN = "TORCHELASTIC_RUN_ID" in os.environ and "OMPI_COMM_WORLD_SIZE" not in os.environ
#: Ranks that mpirun or torchrun started, None without; this process's number, and whether it is the one that prints.
LAUNCHED = int(os.environ["WORLD_SIZE"]) if TORCHRUN else next(
    (int(os.environ[v]) for v in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE") if v in os.environ), None)
RANK = int(os.environ["RANK"] if TORCHRUN else os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
FIRST = RANK == 0


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, once, and exits with status 2."""

    def error(self, message):
        """Print one line and exit."""
        if not FIRST:
            sys.exit(0)     # the status is the first rank's: mpirun ends all at the first other one, maybe before its line is out
        print(f"{self.prog}: {message}. See {self.prog} --help.", file=sys.stderr)
        sys.exit(2)


def at_least(least):
    """Parser of an integer >= least."""
    def integer(text):
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value
    return integer


def open_world(size, executor, seed=0):
    """World of ``size`` ranks: the first of mpirun's or torchrun's, or in this process. None on a rank that is not among them."""
    if not LAUNCHED:
        return World.local(size, executor=executor, seed=seed)
    world = torch_world(executor, seed) if TORCHRUN else World.mpi(executor=executor, seed=seed)
    return world if size == world.size else world.split(range(size))


def torch_world(executor, seed):
    """The world of torchrun's ranks."""
    import torch.distributed
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    return World.torch(executor=executor, seed=seed)


def on_every_rank(world, main, *args):
    """Results of main(world, *args), one for each rank of this process.

    Under mpirun main is called outside of ``world.run``, which would end the job at an error, so that ``guarded`` reports it.
    """
    return [main(world, *args)] if LAUNCHED else world.run(main, *args)


def to_numpy(array):
    """A result on any executor as a NumPy array."""
    array = getattr(array, "local", array)
    if hasattr(array, "data_ptr"):                      # torch
        array = array.detach().cpu()
    return array.get() if hasattr(array, "get") else np.asarray(array)


def guarded(name, main):
    """Run main() and return its exit status: 2 for a request that cannot be carried out, 1 for anything that went wrong.

    Under mpirun a rank that fails ends at once instead of waiting in MPI's finalisation, so that mpirun ends the others.
    """
    try:
        return main()
    except errors.PknumbaError as problem:
        status = 2 if isinstance(problem, (ValueError, TypeError, errors.UnsupportedError)) else 1
        # A request that cannot be carried out needs no more than its first line; a kernel that failed needs the whole report.
        text = str(problem).partition("\n")[0] if status == 2 else str(problem)
        rank = f"rank {RANK}: " if LAUNCHED else ""
        print(f"{name}: {rank}{type(problem).__name__}: {text}", file=sys.stderr, flush=True)
    except Exception:
        if not LAUNCHED:
            raise
        traceback.print_exc()
        status = 1
    if LAUNCHED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status
