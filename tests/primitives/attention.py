"""Attention in thirty lines: the register-tile primitives together, as a kernel of the library would use them."""

from dataclasses import dataclass

import numpy as np

from pknumba.primitives import (accumulator, arrive, as_operand, exp2, expect, fence_async, fill, fill_rows, load_async, mask, maximum,
                                mma, mma_wait, ring, row_max, row_sum, store, store_async, store_async_read_wait, wait)
from pknumba.tiles import Semaphore, Tile, shared

from .tiny import Tiny, TinyConfig

__all__ = ["Attention", "AttentionConfig", "reference"]


@dataclass(frozen=True)
class AttentionConfig(TinyConfig):
    """d: columns of a head; kv: rows of K and V in a block; blocks: how many; a task is 64 rows of Q for each consumer."""

    d: int = 64
    kv: int = 64
    blocks: int = 3
    consumers: int = 2
    scale: float = 0.25


class Attention(Tiny):
    """O = softmax2(causal(scale * Q @ K.T)) @ V, one head; softmax2 has powers of 2."""

    config, tensors, symmetric = AttentionConfig, ("Q", "K", "V", "O"), ("Q", "K", "V", "O")

    @staticmethod
    def shared(cfg):
        block = Tile((2, cfg.kv, cfg.d), cfg.dtype)
        return shared(q=Tile((cfg.consumers, 64, cfg.d), cfg.dtype), k=block, v=block,
                      q_full=Semaphore(1, by="loader"), k_full=Semaphore(2, by="loader"), v_full=Semaphore(2, by="loader"),
                      k_empty=Semaphore(2, by="consumer"), v_empty=Semaphore(2, by="consumer"), o_full=Semaphore(1, by="consumer"))

    @staticmethod
    def loader(cfg, g, s, task):
        expect(s.q_full[0], s.q)
        load_async(s.q, g.Q, (task.id, 0), s.q_full[0])
        for i in range(cfg.blocks):
            stage, phase = ring(i, 2)
            wait(s.k_empty[stage], phase ^ 1)
            expect(s.k_full[stage], s.k[stage])
            load_async(s.k[stage], g.K, (i, 0), s.k_full[stage])
            wait(s.v_empty[stage], phase ^ 1)
            expect(s.v_full[stage], s.v[stage])
            load_async(s.v[stage], g.V, (i, 0), s.v_full[stage])

    @staticmethod
    def consumer(cfg, g, s, task):
        first = (task.id * cfg.consumers + task.part) * 64
        o, top, total = fill(64, cfg.d, 0.0), fill_rows(64, -1e30), fill_rows(64, 0.0)
        wait(s.q_full[0], 0)
        for i in range(cfg.blocks):
            stage, phase = ring(i, 2)
            wait(s.k_full[stage], phase)
            scores = mma_wait(mma(accumulator(64, cfg.kv), s.q[task.part], s.k[stage], add=False, b_transposed=True))
            arrive(s.k_empty[stage])
            scores = mask(scores * cfg.scale, first - i * cfg.kv, 1)
            new = maximum(top, row_max(scores))
            e, shrink = exp2(scores - new), exp2(top - new)
            total = total * shrink + row_sum(e)
            top = new
            p = as_operand(e, cfg.dtype)
            wait(s.v_full[stage], phase)
            o = mma_wait(mma(o * shrink, p, s.v[stage]), 0, p)
            arrive(s.v_empty[stage])
        store(s.q[task.part], o / total)
        fence_async(s.q[task.part])
        arrive(s.o_full[0])

    @staticmethod
    def storer(cfg, g, s, task):
        wait(s.o_full[0], 0)
        store_async(g.O, (task.id, 0), s.q)
        store_async_read_wait(0)


def reference(q, k, v, scale):
    """The same in float32."""
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    scores = np.where(np.arange(len(k)) <= np.arange(len(q))[:, None], np.float32(scale) * (q @ k.T), -np.inf)
    e = np.exp2(scores - scores.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True) @ v
