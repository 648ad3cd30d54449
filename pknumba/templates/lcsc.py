"""LCS plus communication: by communicators on SMs of their own (the last ones of the grid), beside others, or by the storers."""

from ..tiles import Role
from .bands import movers, till_consumed
from .delivery import delivering
from .lcs import LCS


class LCSC(LCS):
    """An LCS kernel that adds ``communicator`` (warps); ``cfg.comm_sms`` SMs play it, the others compute."""

    @classmethod
    def roles(kernel, cfg):
        # every warp of a communicator's block: blocks of one grid have the same size
        return {**super().roles(cfg), "communicator": Role("communicator", "warp", 4 * (cfg.consumers + 1))}


class LCSM(LCS):
    """An LCS kernel whose communicators are movers: threads of the last ``cfg.comm_sms`` SMs, one of each warp, that move bands
    through shared memory to peers. The call is over for a peer's movers once every storer and mover of a rank says so."""

    @classmethod
    def roles(kernel, cfg):
        return {**super().roles(cfg), "communicator": Role("communicator", "thread", cfg.movers, together=False)}

    @classmethod
    def played(kernel, name, adapt=lambda function: function):
        """As for any kernel; a mover's tasks are pieces of bands and lie in no tile."""
        return adapt(kernel.communicator) if name == "communicator" else super().played(name, adapt)

    @classmethod
    def driver(kernel, role):
        """Movers take pieces of bands; storers tell when their block has consumed what was moved to it."""
        special = {"communicator": movers, "storer": till_consumed}
        return special.get(role.name) or super().driver(role)


class LCSI(LCS):
    """An LCS kernel whose communicators, two warps, play in every block beside loader and storer: compute and communication overlap
    within an SM."""

    @classmethod
    def roles(kernel, cfg):
        return {**super().roles(cfg), "communicator": Role("communicator", "warp", 2, beside=True)}

    @classmethod
    def comm_sms(kernel, cfg):
        """None."""
        return 0


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
