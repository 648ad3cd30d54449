"""A rank that has fewer SMs than it was told, as happens where ranks share a card: blocks that others wait for are started first."""

import numpy as np
import pytest

from pknumba import (AllGatherGemmConfig, MoeConfig, RingAttentionConfig, UlyssesAttentionConfig, World, all_gather_gemm, errors,
                     interpreter, moe_dispatch_gemm, ring_attention, ulysses_attention)
from pknumba.kernels import AllGatherGemm, MoeDispatchGemm, RingAttention, UlyssesAttention
from pknumba.templates.call import InterpretedCall

SMS, WORLD, RNG = 6, 2, np.random.default_rng(0)
Q = RNG.integers(-1, 2, (1, 2, 300, 64)).astype("float16")
TINY = dict(consumers=1, kv=64, stages=2, comm_sms=2, depth=1)
ROWS, SQUARE = RNG.integers(-1, 2, (2, 400, 64)).astype("float16")
EXPERTS = RNG.integers(-1, 2, (4, 64, 64)).astype("float16")
TOP = RNG.integers(0, 4, (400, 2)).astype(np.int32)
#: Kernel -> a call of its operator, whose tiles wait for what SMs that only communicate bring: more tiles than SMs, two of those.
CALLS = {
    RingAttention: lambda world: ring_attention(world, Q, Q, Q, config=RingAttentionConfig(**TINY))[0],
    UlyssesAttention: lambda world: ulysses_attention(world, Q, Q, Q, config=UlyssesAttentionConfig(**TINY)),
    AllGatherGemm: lambda world: all_gather_gemm(world, ROWS, SQUARE.T, config=AllGatherGemmConfig(
        tile_m=64, tile_n=64, consumers=1, comm_sms=2, chunk_m=16, dtype="float16")),
    MoeDispatchGemm: lambda world: moe_dispatch_gemm(world, ROWS, TOP, np.array_split(EXPERTS, WORLD)[world.rank], config=MoeConfig(
        tile_m=64, tile_n=64, consumers=1, stages=3, c_stages=1, comm_sms=2), out=np.zeros((WORLD * TOP.size, 64), "float16"))[0],
}


class Short(InterpretedCall):
    """Only so many blocks at once as communicate, and one more; of each grid there are more."""

    def fire(self, stream=0):
        told, self.world.num_sms = self.world.num_sms, self.comm + 1
        assert self.grid > self.world.num_sms or not self.comm
        try:
            super().fire(stream)
        finally:
            self.world.num_sms = told


def run(kernel, seed):
    """What the operator gives on each rank."""
    return World.local(WORLD, executor="interpreter", num_sms=SMS, seed=seed).run(lambda world: np.array(CALLS[kernel](world)))


def test_next_calls_take_the_room():
    """More blocks of four ranks than a card has SMs: those of ranks that are ahead take the room that the late one's leave, and wait."""
    rows = RNG.integers(-1, 2, (1, 4, 100, 64)).astype("float16")

    def main(world):
        for call in range(4):
            interpreter.rest(60 if call % 4 == world.rank else 0)
            ring_attention(world, rows, rows, rows, causal=True, rows=400, config=RingAttentionConfig(**TINY))
        return True
    options = dict(executor="interpreter", num_sms=8, races=False)
    with pytest.raises(errors.DeadlockError, match="cannot start: the 16 SMs of the card are taken"):
        World.local(4, card_sms=16, **options).run(main)
    assert all(World.local(4, card_sms=32, **options).run(main))


@pytest.mark.parametrize("kernel", CALLS, ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_short_of_sms(kernel, seed, monkeypatch):
    """The same results; with blocks that communicate last, nobody would bring what the others wait for."""
    want = run(kernel, seed)
    monkeypatch.setattr("pknumba.templates.call.InterpretedCall", Short)
    assert all(np.array_equal(got, value) for got, value in zip(run(kernel, seed), want))
    monkeypatch.setattr(kernel, "movers_first", False)
    with pytest.raises(errors.DeadlockError, match="arrived"):
        run(kernel, seed)
