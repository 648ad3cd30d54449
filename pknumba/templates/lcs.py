"""Loader, consumers, storer: one persistent block an SM, each role in its own warps, for kernels of one GPU."""

from ..errors import ContractError
from ..tiles import Role
from .base import Template
from .drivers import emptied


class LCS(Template):
    """A kernel declares ``shared`` and the roles ``loader`` (a thread), ``consumer`` (warpgroups) and ``storer`` (a thread).

    One that runs in clusters declares ``emptied(cfg, g, s, step)`` too, with which a loader that has filled ``step`` stages waits until
    all of them are empty.
    """

    @classmethod
    def roles(kernel, cfg):
        consumer = Role("consumer", "warpgroup", cfg.consumers, together=not cfg.ping_pong, cluster=cfg.cluster)
        return {r.name: r for r in (Role("loader", cluster=cfg.cluster), consumer, Role("storer", cluster=cfg.cluster))}

    @classmethod
    def driver(kernel, role):
        """In a cluster the loader leaves last. Raises ContractError for a kernel that does not say how."""
        if role.name != "loader" or role.cluster == 1:
            return super().driver(role)
        if not hasattr(kernel, "emptied"):
            raise ContractError(f"{kernel.__name__}: cluster = {role.cluster}, and no emptied(cfg, g, s, step). Blocks of a cluster arrive "
                                "at each other's semaphores, so none may leave before all that it filled is empty. Declare one that "
                                "waits for that after so many steps, as Gemm does.")
        return emptied(kernel)


class Direct(LCS):
    """The same whose consumers store: there is no storer."""

    @classmethod
    def roles(kernel, cfg):
        return {name: role for name, role in super().roles(cfg).items() if name != "storer"}
