"""What the checker keeps: in proportion to the memory that lives, and no more for many calls. (Times: benchmarks/checker.py.)"""

import ml_dtypes
import numpy as np

from pknumba import GemmAllReduceConfig, World, gemm_all_reduce

CFG = GemmAllReduceConfig(tile_m=64, tile_n=64, consumers=1, comm_sms=1)


def kept(rows, calls=1):
    """Regions with a record after so many calls on two ranks."""
    A, B = np.ones((rows, 64), ml_dtypes.bfloat16), np.ones((64, 64), ml_dtypes.bfloat16)

    def main(world):
        for _ in range(calls):
            held = gemm_all_reduce(world, A, B, config=CFG)
        world.barrier()
        return sum(len(memory.shadow.cells) for memory in world.session.memory), held.shape

    return World.local(2, executor="interpreter").run(main)[0][0]


def test_regions_are_linear_in_rows_and_constant_in_calls():
    few, many = kept(256), kept(1024)
    assert 3.8 * few < many < 4.2 * few
    assert kept(256, calls=6) == few


def test_nothing_is_kept_of_memory_that_is_gone():
    with World.local(2, executor="interpreter") as world:
        for _ in range(3):
            world.run(lambda rank: gemm_all_reduce(rank, np.ones((128, 64), ml_dtypes.bfloat16), np.ones((64, 64), ml_dtypes.bfloat16),
                                                   config=CFG).shape)
        held = sum(len(memory.shadow.cells) for memory in world.session.memory)
    assert held <= 2 * kept(128)
