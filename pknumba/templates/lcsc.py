"""LCS plus communicators on SMs of their own (the last ones of the grid): compute and communication overlap between SMs."""

from ..tiles import Role
from .base import WARPS
from .lcs import LCS


class LCSC(LCS):
    """An LCS kernel that adds ``communicator`` (warps); ``cfg.comm_sms`` SMs play it, the others compute."""

    @classmethod
    def roles(kernel, cfg):
        return {**super().roles(cfg), "communicator": Role("communicator", "warp", WARPS)}
