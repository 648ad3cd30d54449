"""LCS plus communication: by communicators on SMs of their own (the last ones of the grid), beside others, or by the storers."""

from ..tiles import Role
from .bands import arranged_till_consumed, movers, till_consumed
from .delivery import delivering
from .drivers import together
from .lcs import LCS
from .owned import keeping


class LCSC(LCS):
    """An LCS kernel that adds ``communicator`` (warps); ``cfg.comm_sms`` SMs play it, the others compute.

    Attributes:
        inside: the kernel that does the same with no such SMs (``cfg.intra_sm``), which is then the usual way; None: there is none. What
            extends a kernel has none.
    """

    inside = None

    @classmethod
    def for_config(kernel, cfg):
        """``inside`` where the configuration says so."""
        inside = vars(kernel).get("inside")
        return inside if inside and cfg.intra_sm else super().for_config(cfg)

    @classmethod
    def comm_sms(kernel, cfg):
        """None within SMs."""
        return 0 if vars(kernel).get("inside") and cfg.intra_sm else super().comm_sms(cfg)

    @classmethod
    def defaults(kernel):
        """Within SMs, if it can be."""
        return kernel.config(intra_sm=True) if vars(kernel).get("inside") else super().defaults()

    @classmethod
    def roles(kernel, cfg):
        # every warp of a communicator's block: blocks of one grid have the same size
        return {**super().roles(cfg), "communicator": Role("communicator", "warp", 4 * (cfg.consumers + 1))}


class LCSM(LCS):
    """An LCS kernel whose communicators are movers: threads of the last ``cfg.comm_sms`` SMs, one of each warp, that move bands
    through shared memory to peers; with ``cfg.intra_sm``, of two more warps of every SM that computes. The call is over for a peer's
    movers once every storer and mover of a rank says so."""

    @classmethod
    def roles(kernel, cfg):
        beside = getattr(cfg, "intra_sm", False)
        return {**super().roles(cfg), "communicator": Role("communicator", "thread", cfg.movers, together=False, beside=beside)}

    @classmethod
    def comm_sms(kernel, cfg):
        """None where movers are beside others."""
        return 0 if getattr(cfg, "intra_sm", False) else cfg.comm_sms

    @classmethod
    def played(kernel, name, adapt=lambda function: function):
        """As for any kernel; a mover's tasks are pieces of bands and lie in no tile."""
        return adapt(kernel.communicator) if name == "communicator" else super().played(name, adapt)

    @classmethod
    def driver(kernel, role):
        """Movers take pieces of bands; storers tell when their block has consumed what was moved to it."""
        special = {"communicator": movers, "storer": arranged_till_consumed if "order" in kernel.tensors else till_consumed}
        return special.get(role.name) or super().driver(role)


class LCSI(LCS):
    """An LCS kernel that communicates within its SMs: storers send tiles to the ranks that own them, and a ``communicator``, one more
    thread of every block, fetches what has come. A rank's call begins when it may be written to; where the result lies in memory that
    peers write, it ends when all have written."""

    @classmethod
    def all_counters(kernel):
        """The template's own: ``ready`` begins a call, ``finished`` ends it."""
        return (*kernel.counters, "ready", "finished")

    @classmethod
    def roles(kernel, cfg):
        return {**super().roles(cfg), "communicator": Role("communicator", beside=True)}

    @classmethod
    def comm_sms(kernel, cfg):
        """None."""
        return 0

    @classmethod
    def driver(kernel, role):
        """The communicator has the tasks of its block."""
        if role.name == "storer":
            return delivering if kernel.shares_result() else keeping
        return together if role.name == "communicator" else super().driver(role)


class LCSD(LCS):
    """An LCS kernel whose storers deliver to peers. A rank's call begins when it may be written to, and ends when all have written."""

    delivers = True

    @classmethod
    def all_counters(kernel):
        """The template's own: ``ready`` begins a call, ``finished`` ends it."""
        return (*kernel.counters, "ready", "finished")

    @classmethod
    def driver(kernel, role):
        """Storers say so and wait for it."""
        return delivering if role.name == "storer" else super().driver(role)
