"""One rank of a world made of a torch.distributed group; run by torchrun, or under mpirun with the stand-in for torch of this file.

    torchrun --nproc-per-node 2 tests/runtime/torch_ranks.py
    mpirun -n 2 python tests/runtime/torch_ranks.py stand-in
"""

import sys
from types import SimpleNamespace


def stand_in():
    """What pknumba uses of torch.distributed, on mpi4py: groups of sorted ranks that gather objects."""
    from mpi4py import MPI
    comm = MPI.COMM_WORLD

    def new_group(ranks, timeout, backend, use_local_synchronization):
        assert ranks == sorted(ranks) and backend == "gloo" and use_local_synchronization and timeout.total_seconds() > 0
        return comm.Create_group(comm.group.Incl(ranks))

    def all_gather_object(out, value, group):
        out[:] = group.allgather(value)

    return SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, group=SimpleNamespace(WORLD=comm), get_rank=lambda: comm.rank,
        get_process_group_ranks=lambda group: list(range(group.size)), new_group=new_group, all_gather_object=all_gather_object,
        destroy_process_group=lambda group=None: None)


def main():
    """Meet, disagree, split, share memory, close."""
    if sys.argv[1:] == ["stand-in"]:
        distributed = stand_in()
        sys.modules["torch"] = SimpleNamespace(distributed=distributed, __name__="torch")
    else:
        import torch.distributed as distributed
        distributed.init_process_group("gloo")
    from pknumba import World, errors
    world = World.torch(executor="gpu")
    assert world.allgather(world.rank * 10) == [10 * r for r in range(world.size)]
    ring = [(r + 1) % world.size for r in range(world.size)]            # ranks in another order than the group's
    part = world.split(ring)
    assert part.allgather(world.rank) == ring
    try:
        world.agree("call", {"shape": (world.rank,)})
        raise AssertionError("ranks that differ were not told")
    except errors.ShapeError:
        pass
    shared = world.symmetric((4, 8), "float32")
    assert len(set(shared.pointers)) == world.size
    shared.close()
    world.close()
    try:
        World.torch(executor="interpreter")
        raise AssertionError("several ranks on the interpreter were not refused")
    except errors.UnsupportedError as error:
        assert "Use World.mpi" in str(error)
    print(f"rank {world.rank} of {world.size} on device {world.device}: fine", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
