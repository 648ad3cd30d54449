"""What every template derives from a kernel's declarations: roles, arrival counts, shared memory, registers, the plan to compile."""

import inspect

from ..errors import ConfigError, ContractError
from ..lowering import KernelMeta
from ..lowering.variant import timeline
from ..tiles import SHARED_LIMIT, Config, Semaphore, layout
from .drivers import in_turns, located, pieces, recorded, together

#: Registers of an SM, and of a thread at most without spilling into the next multiple of 8.
REGISTERS, MOST = 65536, 255


class Template(metaclass=KernelMeta):
    """Base of kernel classes. Roles are static functions (cfg, g, s, task) and keep no state.

    Attributes of a kernel class:
        config: its Config class.
        tensors: names of its global arrays; symmetric: those that peers may read and write.
        counters: names of its counters between ranks; each has one number a task.
        kinds: {tensor: dtype} of tensors that have another dtype than the configuration's.
        title: what messages call its operator; None: its own name.
        helper_registers: of a loader's or storer's thread once roles are known, a multiple of 8; longer roles need more.
        form: how what it computes is spread over ranks (``forms``); alone: the kernel that does the same on one rank, or None.
        delivers: whether its storers write to other ranks, with no communicator.
        movers_first: whether a device starts the blocks that communicate before those that compute, which wait for them.
        early: tensors that are moved in boxes from this rank's memory, whose maps every block fetches before it begins. Not inherited.
        follows: whether its roles wait by themselves for the kernel before (``follow``), before they first touch global memory: meanwhile
            they find out where their first task lies. Not inherited.
        private: whether its counters are this rank's alone, and every stream has its own (``kept``).
        numbers: what else ``g`` holds: {name: how many int32}.
    """

    config = Config
    tensors, symmetric, counters = (), (), ()
    form = alone = title = None
    delivers = follows = private = False
    movers_first = False
    kinds = {}
    helper_registers = 40
    numbers = {"grid": 2, "tasks": 1, "k_tiles": 1}

    @staticmethod
    def shared(cfg):
        raise NotImplementedError

    #: Static function (cfg, g, task) -> (row, col, first, peer) of a TileTask: roles are then given TileTasks.
    locate = None

    @staticmethod
    def steps(cfg, g, number):
        """Ring steps that a task takes: k_tiles, unless the kernel's tasks differ in length."""
        return g.k_tiles

    @classmethod
    def roles(kernel, cfg):
        """{name: tiles.Role} of the roles that the kernel plays, in the order of their warps."""
        raise NotImplementedError

    @classmethod
    def communicates(kernel):
        """Whether ranks meet in it."""
        return kernel.delivers or hasattr(kernel, "communicator")

    @classmethod
    def defaults(kernel):
        """The configuration whose other fields are kept where a call chooses."""
        return kernel.config()

    @classmethod
    def comm_sms(kernel, cfg):
        """SMs that only communicate."""
        return getattr(cfg, "comm_sms", 0) if hasattr(kernel, "communicator") else 0

    @classmethod
    def shares_result(kernel):
        """Whether what the caller gets is symmetric memory while the kernel runs."""
        return "out" not in kernel.tensors and "C" in kernel.symmetric

    @classmethod
    def all_counters(kernel):
        """The kernel's counters and the template's own: ``finished`` ends a call."""
        return (*kernel.counters, "finished") if kernel.communicates() else kernel.counters

    @classmethod
    def all_numbers(kernel):
        return {**kernel.numbers, "rank": 1, "world_size": 1, "comm_sms": 1}

    @classmethod
    def plain(kernel):
        """Whether a call may choose only configurations that this class itself plays (``for_config``)."""
        return True

    @classmethod
    def for_config(kernel, cfg):
        """The kernel that plays a configuration: itself, or one that does the same in another way."""
        return kernel

    @classmethod
    def played(kernel, name, adapt=lambda function: function):
        """The function that plays a role, given Tasks. ``adapt``: what an executor makes of a function."""
        role = adapt(getattr(kernel, name))
        return role if kernel.locate is None else adapt(located(role, adapt(kernel.locate)))

    @classmethod
    def driver(kernel, role):
        """The factory of the loop that gives a role its tasks."""
        if role.name == "communicator":
            return pieces
        return together if role.together else in_turns

    @classmethod
    def places(kernel, cfg):
        """(places, bytes) of a block's shared memory. Raises ConfigError if it does not fit, ContractError for an unknown role."""
        places, size = layout(kernel.shared(cfg))
        roles = kernel.roles(cfg)
        for name, (_, decl) in places.items():
            if isinstance(decl, Semaphore) and decl.by not in roles:
                raise ContractError(f"{kernel.__name__}: semaphore {name} is declared by={decl.by!r}. It must name a role of the kernel: "
                                    f"{', '.join(roles)}.")
        if size + 1024 > SHARED_LIMIT:
            raise ConfigError(f"{kernel.__name__}: needs {size + 1024} bytes of shared memory. sm_90 offers {SHARED_LIMIT}. "
                              "Use fewer stages or a smaller tile.", needed=size + 1024, offered=SHARED_LIMIT)
        return places, size

    @classmethod
    def registers(kernel, cfg):
        """(few, many): registers of helper and consumer threads once roles are known; (0, 0) leaves them as launched."""
        consumers = kernel.roles(cfg)["consumer"].workers
        launched = REGISTERS // ((consumers + 1) * 128) // 8 * 8
        if launched > MOST - 7:
            return 0, 0
        few = max(kernel.helper_registers, 56 if timeline() else 0)
        return few, min(240, (launched * (consumers + 1) - few) // consumers // 8 * 8)

    @classmethod
    def check(kernel):
        """Raise ContractError unless roles are static functions (cfg, g, s, task)."""
        for name in ("loader", "consumer", "storer", "communicator"):
            raw = inspect.getattr_static(kernel, name, None)
            if raw is None:
                continue
            if not isinstance(raw, staticmethod) or list(inspect.signature(raw.__func__).parameters) != ["cfg", "g", "s", "task"]:
                raise ContractError(f"{kernel.__name__}.{name}: is no role. A role is a @staticmethod with the arguments "
                                    "(cfg, g, s, task).")

    @classmethod
    def plan(kernel, cfg):
        """What ``lowering.build`` compiles for that configuration."""
        from ..lowering.entry import Plan
        kernel.check()
        roles = kernel.roles(cfg)
        drive = recorded if timeline() else lambda factory: factory
        name = "".join("_" + c.lower() if c.isupper() else c for c in kernel.__name__).strip("_")
        return Plan(name=name, kernel=kernel, cfg=cfg, roles=roles, drivers={n: drive(kernel.driver(r)) for n, r in roles.items()},
                    places=kernel.places(cfg)[0], registers=kernel.registers(cfg),
                    tensors={n: kernel.kinds.get(n, cfg.dtype) for n in kernel.tensors},
                    counters=kernel.all_counters(), numbers=kernel.all_numbers())
