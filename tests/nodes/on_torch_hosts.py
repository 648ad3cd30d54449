"""What test_deployment.py's torchrun starts on every rank of two hosts: they meet, and their engine carries device memory (stand-ins)."""

import os
import sys

import numpy as np
import torch.distributed

from pknumba import World
from pknumba.runtime import DeviceArray


def main():
    torch.distributed.init_process_group("gloo")
    with World.torch(executor="gpu", device=int(os.environ["RANK"]), host_limit_s=30) as world:         # NCCL wants a GPU for each
        node, us, there = world.here[0], *(world.layout.groups[i] for i in (world.here[0], 1 - world.here[0]))
        assert world.spans and world.across.engine.name == "nccl" and world.allgather(world.rank) == list(range(world.size))
        mine = DeviceArray.of(np.full(1000, world.rank, np.float32), world.device)
        came = {rank: DeviceArray.empty((1000,), "float32", world.device) for rank in there}
        engine = world.across.engine
        engine.wait(engine.start([(rank, mine) for rank in there], list(came.items()), "the test"))
        assert all((array.get() == rank).all() for rank, array in came.items())
        sys.stdout.write(f"rank {world.rank} of {world.layout.names} on node {node} with {us}: sent {engine.sent}\n")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
