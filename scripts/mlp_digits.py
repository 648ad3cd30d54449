"""A two-layer network, its weights spread over the ranks of a world, reads scikit-learn's handwritten digits.

Layer 1 is column-parallel: rank r holds the weights of its own hidden units, and one ``gemm`` gives their activations.
Layer 2 is row-parallel: rank r holds the weights that leave its hidden units, and one ``gemm_all_reduce`` gives every rank
the sum over all hidden units, the ten scores. One process fits the weights with NumPy; then all ranks read the test images
in bfloat16. Exit status 1 when the accuracy or the agreement with NumPy is not what it must be.

    mpirun -n 4 python scripts/mlp_digits.py            # ranks as MPI processes
    python scripts/mlp_digits.py --world 4              # ranks in this process
"""

import argparse
import sys
import time

import ml_dtypes
import numpy as np
from launch import FIRST, LAUNCHED, Parser, at_least, guarded, on_every_rank, open_world, to_numpy
from operators import FLOAT32, ROUNDING

from pknumba import gemm, gemm_all_reduce

STARTED = time.perf_counter()
BFLOAT16 = ml_dtypes.bfloat16
HIDDEN, CLASSES, ACCURACY = 384, 10, 0.95


def say(text):
    """Print on one rank only, at once."""
    if FIRST:
        print(text, flush=True)


def data():
    """Images (n, 64) in 0..1, exact in bfloat16, and labels (n,): (train images, test images, train labels, test labels)."""
    from sklearn.datasets import load_digits             # seconds to import: one rank does it
    from sklearn.model_selection import train_test_split
    images, labels = load_digits(return_X_y=True)
    return train_test_split((images / 16).astype(np.float32), labels, test_size=0.25, stratify=labels, random_state=0)


def fit(images, labels, epochs, seed=0):
    """Fit (W1 (HIDDEN, 64), W2 (CLASSES, HIDDEN)) in float32 by Adam on the cross entropy; rows are outputs, as in torch."""
    rng = np.random.default_rng(seed)
    weights = [rng.standard_normal(s).astype(np.float32) * np.float32((2 / s[1]) ** 0.5) for s in ((HIDDEN, 64), (CLASSES, HIDDEN))]
    mean, square, step = [0.0, 0.0], [0.0, 0.0], 0
    for epoch in range(1, epochs + 1):
        loss = 0.0
        for batch in np.array_split(rng.permutation(len(images)), 10):
            x, step = images[batch], step + 1
            hidden = np.maximum(x @ weights[0].T, 0)
            scores = hidden @ weights[1].T
            share = np.exp(scores - scores.max(1, keepdims=True))
            share /= share.sum(1, keepdims=True)
            right = np.arange(len(batch)), labels[batch]
            loss -= np.log(share[right]).sum()
            share[right] -= 1
            share /= len(batch)
            slopes = ((share @ weights[1]) * (hidden > 0)).T @ x, share.T @ hidden
            for i, slope in enumerate(slopes):
                mean[i] = 0.9 * mean[i] + 0.1 * slope
                square[i] = 0.999 * square[i] + 0.001 * slope**2
                rate = 2e-3 * (1 - 0.999**step) ** 0.5 / (1 - 0.9**step)
                weights[i] = (weights[i] - rate * mean[i] / (np.sqrt(square[i]) + 1e-8)).astype(np.float32)
        if epoch % 10 == 0:
            say(f"fit: epoch {epoch} of {epochs}, loss {loss / len(images):.4f}")
    return weights


def shares(weights, size):
    """Weights in bfloat16, hidden units dealt out: [(W1_r, W2_r)] per rank. Idle units (zeros) make the shares equal."""
    units = -(-HIDDEN // (8 * size)) * 8                               # 16 bytes of bfloat16: what a bulk copy moves
    W1 = np.zeros((units * size, 64), BFLOAT16)
    W2 = np.zeros((CLASSES, units * size), BFLOAT16)
    W1[:HIDDEN], W2[:, :HIDDEN] = weights
    return [(W1[r * units:(r + 1) * units], np.ascontiguousarray(W2[:, r * units:(r + 1) * units])) for r in range(size)]


def network(world, W1, W2, images):
    """Scores (n, 10) of the images on every rank; W1 (units, 64) and W2 (10, units) are this rank's share."""
    hidden = gemm(world, images, W1.T)
    world.synchronize()
    scores = gemm_all_reduce(world, world.asarray(np.maximum(to_numpy(hidden), 0)), W2.T)
    world.synchronize()
    return scores


def single(images, parts):
    """The same network in float64 NumPy on one process: (scores, largest rounding error that bfloat16 can make in each)."""
    u, x = ROUNDING["bfloat16"], images.astype(np.float64)
    scores, bound = 0.0, 0.0
    for W1, W2 in ((a.astype(np.float64), b.astype(np.float64)) for a, b in parts):
        hidden = np.maximum(x @ W1.T, 0)
        # A hidden value is off by its rounding and by the float32 sum of its 64 products; both reach the scores through W2.
        off = u * hidden + 68 * FLOAT32 * np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(W1, axis=1))
        partial = hidden @ W2.T
        chain = (W2.shape[1] / 16 + 64) * FLOAT32
        summed = off @ np.abs(W2.T) + chain * np.outer(np.linalg.norm(hidden, axis=1), np.linalg.norm(W2, axis=1))
        scores, bound = scores + partial, bound + summed + u * (np.abs(partial) + summed)
    return scores, bound + u * (np.abs(scores) + bound)


def prepare(epochs):
    """On one rank: (weights, images to read, their labels)."""
    say(f"fit: {HIDDEN} hidden units on scikit-learn's digits, one process")
    train_images, test_images, train_labels, test_labels = data()
    return fit(train_images, train_labels, epochs), test_images, test_labels


def read(world, args):
    """One rank's part. Returns (scores of all test images, shares of all ranks, test images, labels, seconds)."""
    weights, test_images, test_labels = world.allgather(prepare(args.epochs) if world.rank == 0 else None)[0]
    parts = shares(weights, world.size)
    W1, W2 = (world.asarray(x) for x in parts[world.rank])
    scores, start = [], time.perf_counter()
    for at in range(0, len(test_images), args.batch):
        batch = world.asarray(test_images[at:at + args.batch].astype(BFLOAT16))
        scores.append(to_numpy(network(world, W1, W2, batch)).astype(np.float64))
        if world.rank == 0:
            say(f"read: {min(at + args.batch, len(test_images))} of {len(test_images)} images")
    return np.concatenate(scores), parts, test_images, test_labels, time.perf_counter() - start


def judge(world, found):
    """Print the result of one rank and say whether it is right."""
    scores, parts, images, labels, seconds = found
    expected, bound = single(images, parts)
    accuracy, alone = np.mean(scores.argmax(1) == labels), np.mean(expected.argmax(1) == labels)
    difference, share = np.max(np.abs(scores - expected)), np.max(np.abs(scores - expected) / bound)
    passed = bool(accuracy >= ACCURACY and share <= 1)
    say(f"accuracy {accuracy:.4f} on {len(labels)} unseen images (NumPy on one process {alone:.4f}; at least {ACCURACY} is asked)\n"
        f"largest difference from NumPy {difference:.4f} in scores up to {np.max(np.abs(expected)):.1f}, "
        f"{share:.2f} of what rounding to bfloat16 allows\n"
        f"executor {world.executor}, {world.size} ranks, reading {seconds:.2f} s, in all {time.perf_counter() - STARTED:.1f} s\n"
        f"{'PASS' if passed else 'FAIL'}")
    return passed


def main():
    """Fit, read, judge. Returns the exit status."""
    p = Parser(prog="mlp_digits.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("--world", type=at_least(1), help="ranks in this process, without mpirun (4)")
    p.add_argument("--executor", choices=["auto", "gpu", "interpreter"], default="auto")
    p.add_argument("--epochs", type=at_least(1), default=40)
    p.add_argument("--batch", type=at_least(1), default=150, help="images read at once")
    args = p.parse_args()
    world = open_world(args.world or LAUNCHED or 4, args.executor)
    with world:
        results = on_every_rank(world, read, args)
    agreed = all(np.array_equal(r[0], results[0][0]) for r in results)
    return 0 if judge(world, results[0]) and agreed else 1


if __name__ == "__main__":
    sys.exit(guarded("mlp_digits.py", main))
