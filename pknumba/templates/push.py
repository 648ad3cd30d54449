"""Kernels in which ranks write to each other."""

from ..errors import ConfigError
from .comm import Comm


class Push(Comm):
    """A kernel in which ranks write to each other: the result itself where that is symmetric, else to memory of the world."""

    tensors, symmetric = ("X", "Y"), ("Y",)
    #: How many times as many blocks there may be as are resident: while some wait or combine, others write.
    waves = 1

    @staticmethod
    def copy_in(cfg, g, s, task):
        """Nothing: peers read nothing."""

    @classmethod
    def suits(kernel, call):
        """Whether it is chosen for a call, alike on every rank. Here: wherever results are symmetric, since nothing is copied then."""
        return call.out_symmetric

    @classmethod
    def prepare(kernel, call):
        """Raise ConfigError for a call that it cannot do."""
        if not call.out_symmetric:
            raise ConfigError(f"{kernel.operator}: algorithm push. Ranks write to each other's out, which is no symmetric array here. "
                              "Pass one made by world.symmetric, or another algorithm.")

    @classmethod
    def blocks(kernel, call, numbers):
        """More where warps have at least eight pieces each all the same."""
        blocks = super().blocks(call, numbers)
        return blocks * max(1, min(kernel.waves, numbers["pieces"] // (8 * call.cfg.warps * blocks)))

    @classmethod
    def copies(kernel, x_symmetric, out_symmetric):
        """None."""
        return {}

    @classmethod
    def views(kernel, call, x, out, y):
        """Two arrays."""
        return dict(X=call.private(call.x, call.box.x), Y=call.shared(out, call.box.y))
