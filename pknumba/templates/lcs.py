"""Loader, consumers, storer: one persistent block an SM, each role in its own warps, for kernels of one GPU."""

from ..tiles import Role
from .base import Template


class LCS(Template):
    """A kernel declares ``shared`` and the roles ``loader`` (a thread), ``consumer`` (warpgroups) and ``storer`` (a thread)."""

    @classmethod
    def roles(kernel, cfg):
        consumer = Role("consumer", "warpgroup", cfg.consumers, together=not cfg.ping_pong, cluster=cfg.cluster)
        return {r.name: r for r in (Role("loader", cluster=cfg.cluster), consumer, Role("storer", cluster=cfg.cluster))}


class Direct(LCS):
    """The same whose consumers store: there is no storer."""

    @classmethod
    def roles(kernel, cfg):
        return {name: role for name, role in super().roles(cfg).items() if name != "storer"}
