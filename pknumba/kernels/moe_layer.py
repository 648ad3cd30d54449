"""A layer of experts: dispatch and first product, an activation, second product and combine."""

from .moe_combine import MoeCombine, moe_combine
from .moe_dispatch_gemm import moe_dispatch_gemm
from ..templates import kept_result
from ..templates.arguments import over_nodes


class MoeLayer(MoeCombine):
    """The last kernel of a layer; Route and MoeDispatchGemm come before it."""


def moe_layer(world, X, indices, weights, W1, W2, *, activation="silu", tokens=None, experts=None, capacity=None, out=None,
              config=(None, None), stream=None):
    """out[t] = sum over slots j of weights[t, j] * activation(X[t] @ W1[e]) @ W2[e], where e = indices[t, j]; collective.

    Args:
        world, X, indices, tokens, experts, capacity, stream: as in ``moe_dispatch_gemm``; the experts 0 .. E - 1 are divided over ranks.
        weights: (T, k) float32, contiguous, on the device.
        W1: (this rank's experts, H, F), W2: (this rank's experts, F, N) of X's dtype, or transposes as in ``grouped_gemm``.
        activation: "none", "relu", "silu" or "gelu" (by tanh), in float32, of the first product before it is rounded.
        out: (T, N) of X's dtype; made with X's library if None. config: MoeConfig of each product, chosen by shape where None.

    Returns: out (T, N). Slots whose index is no expert's, or that find no room, count as zero. The same bits each time.

    Raises: as ``moe_dispatch_gemm`` and ``moe_combine``.
    """
    if spanning := over_nodes("moe_layer", world):
        return spanning(world, X, indices, weights, W1, W2, activation, experts, capacity, out, config, stream)
    first, second = config
    Y = kept_result(world, X, indices, W1, tokens, capacity, stream)
    Y, routes = moe_dispatch_gemm(world, X, indices, W1, activation=activation, tokens=tokens, experts=experts, capacity=capacity, out=Y,
                                  config=first, stream=stream)
    return moe_combine(world, Y, routes, W2, weights, out=out, config=second, stream=stream)
