"""LCS plus communicators on SMs of their own (the last ones of the grid): compute and communication overlap between SMs."""

from ..tiles import Role
from .lcs import LCS


class LCSC(LCS):
    """An LCS kernel that adds ``communicator`` (warps); ``cfg.comm_sms`` SMs play it, the others compute."""

    @classmethod
    def roles(kernel, cfg):
        # every warp of a communicator's block: blocks of one grid have the same size
        return {**super().roles(cfg), "communicator": Role("communicator", "warp", 4 * (cfg.consumers + 1))}
