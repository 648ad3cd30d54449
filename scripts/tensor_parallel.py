"""Two torch layers with their weights spread over ranks learn scikit-learn's digits; every loss is that of torch on one process.

``ColumnParallel`` gives a rank the outputs of its own units, ``RowParallel`` the sum over all ranks' units. Each is a
torch.autograd.Function, forward and backward by pknumba: what is local is ``gemm``, what is a sum over ranks ``gemm_all_reduce``.
Weights are float32, products bfloat16. Beside it the same layers learn on one process by torch alone, in bfloat16 and in float32:
the losses may differ by no more than bfloat16 itself makes. Exit status 1 if they do, or if nothing was learnt.

    mpirun -n 2 python scripts/tensor_parallel.py       # ranks as MPI processes
    torchrun --nproc-per-node 2 scripts/tensor_parallel.py      # as torchrun's: on GPUs, no MPI is needed
    python scripts/tensor_parallel.py                   # one rank
"""

import argparse
import sys
import time

from launch import FIRST, LAUNCHED, Parser, at_least, guarded, on_every_rank, open_world

from pknumba import errors, gemm, gemm_all_reduce

try:
    import torch
except ImportError:
    torch = None

FEATURES, CLASSES = 64, 10


def product(operator, world, A, B):
    """The operator on torch tensors: as they are on a GPU, by NumPy views of them on the interpreter."""
    if world.executor == "gpu":
        return operator(world, A, B)
    C = operator(world, world.asarray(A), world.asarray(B))
    return torch.from_numpy(C.view("uint16")).view(torch.bfloat16)


if torch is not None:
    class ColumnParallel(torch.autograd.Function):
        """y = x @ W.T for this rank's rows of W; x is the same on every rank, and so is its gradient."""

        @staticmethod
        def forward(ctx, world, x, W):
            ctx.world = world
            ctx.save_for_backward(x, W)
            return product(gemm, world, x, W.t())

        @staticmethod
        def backward(ctx, dy):
            x, W = ctx.saved_tensors
            dy = dy.contiguous()
            return None, product(gemm_all_reduce, ctx.world, dy, W), product(gemm, ctx.world, dy.t().contiguous(), x)

    class RowParallel(torch.autograd.Function):
        """y = sum over ranks of x @ W.T, for this rank's columns of W and its own x; y is the same on every rank."""

        @staticmethod
        def forward(ctx, world, x, W):
            ctx.world = world
            ctx.save_for_backward(x, W)
            return product(gemm_all_reduce, world, x, W.t())

        @staticmethod
        def backward(ctx, dy):
            x, W = ctx.saved_tensors
            dy = dy.contiguous()
            return None, product(gemm, ctx.world, dy, W), product(gemm, ctx.world, dy.t().contiguous(), x)

    class Layers(torch.nn.Module):
        """Two layers, of which this rank has the weights of its own hidden units.

        Args:
            world: World; None: all on one process, by torch. dtype: of products.
            W1, W2: weights of the whole, (hidden, FEATURES) and (CLASSES, hidden).
        """

        def __init__(self, world, W1, W2, dtype):
            super().__init__()
            rank, size = (world.rank, world.size) if world else (0, 1)
            self.world, self.dtype = world, dtype
            self.W1 = torch.nn.Parameter(W1.chunk(size, 0)[rank].clone())
            self.W2 = torch.nn.Parameter(W2.chunk(size, 1)[rank].clone())

        def forward(self, x):
            """Scores (n, CLASSES) in float32."""
            x, W1, W2 = (t.to(self.dtype) for t in (x, self.W1, self.W2))
            if self.world is None:
                return (torch.relu(x @ W1.t()) @ W2.t()).float()
            return RowParallel.apply(self.world, torch.relu(ColumnParallel.apply(self.world, x, W1)), W2).float()


def digits(device, images):
    """(images (n, FEATURES) float32, labels (n,)) on a device."""
    from sklearn.datasets import load_digits
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x[:images] / 16, dtype=torch.float32, device=device), torch.tensor(y[:images], device=device)


def learn(layers, x, y, steps, rate):
    """Losses of so many steps of gradient descent; the first is that of the weights as they came."""
    optimizer, losses = torch.optim.SGD(layers.parameters(), lr=rate), []
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(layers(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def run(world, args):
    """One rank's part: losses over ranks, of torch alone in bfloat16 and in float32, and seconds."""
    device = "cpu" if world.executor == "interpreter" else f"cuda:{world.device}"
    if device != "cpu":
        torch.cuda.set_device(world.device)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    W1 = (torch.randn(args.hidden, FEATURES) * (2 / FEATURES) ** 0.5).to(device)
    W2 = (torch.randn(CLASSES, args.hidden) * (2 / args.hidden) ** 0.5).to(device)
    x, y = digits(device, args.images)
    start = time.perf_counter()
    ours = learn(Layers(world, W1, W2, torch.bfloat16), x, y, args.steps, args.rate)
    seconds = time.perf_counter() - start
    alone = [learn(Layers(None, W1, W2, dtype), x, y, args.steps, args.rate) for dtype in (torch.bfloat16, torch.float32)]
    return ours, *alone, seconds


def main():
    """Learn and judge. Returns the exit status."""
    p = Parser(prog="tensor_parallel.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("--executor", choices=["auto", "gpu", "interpreter"], default="auto")
    p.add_argument("--hidden", type=at_least(1), default=128, help="hidden units, a multiple of 8 for each rank (128)")
    p.add_argument("--images", type=at_least(1), default=256, help="to learn from (256)")
    p.add_argument("--steps", type=at_least(2), default=6)
    p.add_argument("--rate", type=float, default=0.5)
    p.add_argument("--seed", type=at_least(0), default=0)
    args = p.parse_args()
    ranks = LAUNCHED or 1
    if args.hidden % (8 * ranks):
        p.error(f"--hidden {args.hidden} is no multiple of {8 * ranks}, 8 units for each of {ranks} ranks")
    if torch is None:
        raise errors.UnsupportedError("tensor_parallel.py: torch is not installed. Its layers are torch's. Install it: pip install torch.")
    world = open_world(ranks, args.executor)
    with world:
        found = on_every_rank(world, run, args)[0]
        everyone = world.allgather(found[0])
    ours, rounded, exact, seconds = found
    noise = max(abs(a - b) for a, b in zip(rounded, exact))
    apart = max(abs(a - b) for a, b in zip(ours, exact))
    passed = apart <= 2 * noise + 1e-3 and ours[-1] < 0.7 * ours[0] and all(e == ours for e in everyone)
    if FIRST:
        for name, losses in (("over ranks", ours), ("torch, bfloat16", rounded), ("torch, float32", exact)):
            print(f"{name:<16}" + " ".join(f"{loss:8.4f}" for loss in losses))
        print(f"tensor_parallel: {world.size} ranks, {world.executor}, {args.steps} steps in {seconds:.2f} s; at most {apart:.4f} from "
              f"float32, where bfloat16 alone is {noise:.4f}: {'PASS' if passed else 'FAIL'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(guarded("tensor_parallel.py", main))
