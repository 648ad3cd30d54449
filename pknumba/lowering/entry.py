"""The kernel's entry: sets a block up, finds out which role each thread plays, and lets it play."""

from collections import namedtuple
from dataclasses import dataclass

from numba import cuda
from numba.cuda import extending, types

from ..tiles import Semaphore
from .bounded import EPOCH
from .compile import compile_entry, entry_ptx
from .declare import need
from .ptx import MAPS, Ptx
from .recording import CONTEXT, CURSORS
from .register import device, forget, register_primitives, view
from .types import I32, I64, CountersType, ParameterType, SharedType, TensorType


@dataclass(frozen=True)
class Plan:
    """What the template derived from a kernel and its configuration, and what ``build`` compiles.

    Attributes:
        name: of the kernel, in the cubin and in profilers.
        kernel: the class whose static functions are the roles.
        cfg: its configuration.
        roles: {name: tiles.Role} in order; thread roles each get a warp of the last warpgroup.
        drivers: {role name: factory(role function, steps function) -> f(cfg, g, s, part, place, places)}.
        places: {name: (offset, declaration)} of the block's shared memory.
        registers: (few, many) of helpers and consumers, or (0, 0).
        tensors: {name: dtype}; counters: names; numbers: {name: how many int32}.
    """

    name: str
    kernel: object
    cfg: object
    roles: dict
    drivers: dict
    places: dict
    registers: tuple
    tensors: dict
    counters: tuple
    numbers: dict

    @property
    def fields(self):
        return (*self.tensors, *self.counters, *self.numbers, "epoch")

    @property
    def cluster(self):
        return max(r.cluster for r in self.roles.values())

    @property
    def threads(self):
        return 128 * self.roles["consumer"].workers + 128 if "consumer" in self.roles else 32 * self.roles["communicator"].workers

    @property
    def blocks(self):
        """Blocks that an SM must have registers for: small ones of 512 threads in all, where warps only communicate."""
        return 512 // self.threads if "consumer" not in self.roles and self.threads <= 128 else 1


def _globals_type(plan, role):
    """The named tuple ``g`` as that role sees it."""
    kinds = [TensorType(n, dtype, role) for n, dtype in plan.tensors.items()]
    kinds += [CountersType(n, i, role) for i, n in enumerate(plan.counters)]
    kinds += [types.int32 if n == 1 else types.UniTuple(types.int32, n) for n in plan.numbers.values()]
    return types.NamedTuple([*kinds, types.int32], namedtuple("Globals", plan.fields))


def _parameters_type(plan):
    kinds = [ParameterType(TensorType.size)] * len(plan.tensors) + [ParameterType(CountersType.size)] * len(plan.counters)
    kinds += [types.int32 if n == 1 else types.UniTuple(types.int32, n) for n in plan.numbers.values()]
    return types.NamedTuple([*kinds, types.uint64], namedtuple("Parameters", (*plan.fields[:-1], "context")))


def _bind(target):
    """An intrinsic: the kernel's parameters and the epoch become ``g`` of a role."""
    @extending.intrinsic
    def bind(tyctx, parameters, epoch):
        def codegen(context, b, sig, args):
            value = context.get_constant_undef(target)
            for i, source in enumerate(sig.args[0]):
                item = b.extract_value(args[0], i)
                if isinstance(source, ParameterType):
                    item = b.ptrtoint(item, I64)
                elif i == len(target) - 1:
                    item = args[1]
                value = b.insert_value(value, item, i)
            return value
        return target(parameters, types.int32), codegen
    return bind


def _begin(plan):
    """An intrinsic that sets the block up: semaphores and the launch context."""
    early = [i for i, name in enumerate(plan.tensors) if name in vars(plan.kernel).get("early", ())]
    counts = [(at + 8 * i, d.arrivals(plan.roles[d.by])) for at, d in plan.places.values() if isinstance(d, Semaphore) for i in range(d.n)]

    # in a cluster, others may arrive here as soon as they run
    meet = "bar.sync 0;" if plan.cluster == 1 else "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"
    show = "fence.proxy.async.shared::cta;" if plan.cluster == 1 else "fence.mbarrier_init.release.cluster; fence.proxy.async;"

    @extending.intrinsic
    def begin(tyctx, parameters):
        def codegen(context, b, sig, args):
            p = Ptx(context, b, sig.args)
            base = p.shared_base()
            with p.when(b.icmp_unsigned("==", p("mov.u32 $0, %tid.x;", out=[I32], pure=True), p.const(0))):
                for at, n in counts:
                    p(f"mbarrier.init.shared::cta.b64 [$0+{at}], {n};", base)
                if p.recording:
                    p("".join(f"st.shared.u64 [$0+{CURSORS + 8 * i}], 0; " for i in range(5)), base)
                p(f"st.shared.u64 [$0+{CONTEXT}], $1; {show}", base, b.extract_value(args[0], len(sig.args[0]) - 1))
            for i in early:                         # each by a warp of its own, before the wait: a map is far away at first
                with p.when(b.icmp_unsigned("==", p("mov.u32 $0, %tid.x;", out=[I32], pure=True), p.const(32 * i))):
                    p(f"prefetch.tensormap [$0+{MAPS}];", b.ptrtoint(b.extract_value(args[0], i), I64))
            # the next kernel's blocks may begin as soon as all of this one's have, and wait there until this one has ended
            p(f"griddepcontrol.launch_dependents; {meet}")
            return base
        return types.int32(parameters), codegen
    return begin


def _follow(plan):
    """An intrinsic: the wait for the kernel before this one, unless roles wait by themselves."""
    @extending.intrinsic
    def follow(tyctx, parameters, base):
        def codegen(context, b, sig, args):
            p = Ptx(context, b, sig.args)
            if not vars(plan.kernel).get("follows"):
                p("griddepcontrol.wait;")
            p.prepare_ring(args[1], b.extract_value(args[0], len(sig.args[0]) - 1))
            return context.get_dummy_value()
        return types.void(parameters, base), codegen
    return follow


def _epoch(plan):
    """An intrinsic: the number of this call, one more than the last that ended on this rank."""
    @extending.intrinsic
    def epoch(tyctx, parameters):
        def codegen(context, b, sig, args):
            p = Ptx(context, b, sig.args)
            address = b.extract_value(args[0], len(sig.args[0]) - 1)
            return b.add(p(f"ld.global.u32 $0, [$1+{EPOCH}];", address, out=[I32]), p.const(1))
        return types.int32(parameters), codegen
    return epoch


@extending.intrinsic
def _warpgroup(tyctx):
    return types.int32(), lambda context, b, sig, args: Ptx(context, b, ()).group()


@extending.intrinsic
def _warp(tyctx):
    text = "{ .reg .u32 t; mov.u32 t, %tid.x; shr.u32 t, t, 5; shfl.sync.idx.b32 $0, t, 0, 31, -1; }"
    return types.int32(), lambda context, b, sig, args: Ptx(context, b, ())(text, out=[I32])


def _set_registers(verb, n):
    @extending.intrinsic
    def set_registers(tyctx):
        def codegen(context, b, sig, args):
            Ptx(context, b, ())(f"setmaxnreg.{verb}.sync.aligned.u32 {n};")
            return context.get_dummy_value()
        return types.void(), codegen
    return set_registers


@extending.intrinsic
def _i32(tyctx, x):
    return types.int32(x), lambda context, b, sig, args: Ptx(context, b, sig.args).plain(args[0], sig.args[0])


_COMPUTE = """
{pad}group = warpgroup()
{pad}tid = i32(cuda.threadIdx.x)
{pad}{number}
{pad}if group == {consumers}:
{pad}    {few}
{helpers}
{pad}else:
{pad}    {many}
{pad}    consumer(cfg, bind_consumer(parameters, epoch), share_consumer(base), group, block, sms)"""
#: Lanes shuffle to learn their warp's number, so all of them ask before a branch parts them.
_BESIDE = """{pad}    elif number >= {first} and number < {end}:
{pad}        {only}communicator(cfg, bind_communicator(parameters, epoch), share_communicator(base), i32(number - {first}),
{pad}                     i32(block * {warps} + number - {first}), i32(sms * {warps}))"""
_COMMUNICATE = """
{pad}workers = i32((i32(cuda.gridDim.x) - sms) * {warps})
{pad}worker = i32(({number}) * {warps} + warp())
{pad}{only}communicator(cfg, bind_communicator(parameters, epoch), share_communicator(base), warp(), worker, workers)"""


def _source(plan):
    """Text of the entry: numba cannot loop over functions of different types, so roles are written out."""
    helpers = [r for r in plan.roles.values() if r.scope == "thread" and r.name != "communicator"]
    comm = plan.roles.get("communicator")
    only = "if i32(cuda.threadIdx.x) & 31 == 0: " if comm and comm.scope == "thread" else ""
    beside, comm = (comm, None) if comm and comm.beside else (None, comm)
    lines = ["def entry(parameters):", "    base = begin(parameters)", "    follow(parameters, base)",
             "    epoch = get_epoch(parameters)" if plan.counters else "    epoch = i32(0)", "    block = i32(cuda.blockIdx.x)"]
    if "consumer" not in plan.roles:
        return "\n".join(lines) + "\n    sms = i32(0)" + _COMMUNICATE.format(pad=" " * 4, number="block", warps=comm.workers, only=only)
    consumers = plan.roles["consumer"].workers
    lines.append("    sms = i32(i32(cuda.gridDim.x) - parameters.comm_sms)" if comm else "    sms = i32(cuda.gridDim.x)")
    pad = " " * (8 if comm else 4)
    calls = [f"{pad}    {'if' if i == 0 else 'elif'} tid == {consumers * 128 + 32 * i}: {r.name}(cfg, bind_{r.name}(parameters, epoch), "
             f"share_{r.name}(base), i32(0), block, sms)" for i, r in enumerate(helpers)]
    if beside:
        first = 4 * consumers + len(helpers)
        calls.append(_BESIDE.format(pad=pad, only=only, first=first, end=first + beside.workers, warps=beside.workers))
    few, many = ("few()", "many()") if plan.registers[0] else ("pass", "pass")
    compute = _COMPUTE.format(pad=pad, consumers=consumers, few=few, many=many, helpers="\n".join(calls),
                              number="number = warp()" if beside else "tid = i32(cuda.threadIdx.x)")
    if not comm:
        return "\n".join(lines) + compute
    first = getattr(plan.kernel, "movers_first", False)
    number = "block + parameters.comm_sms" if first else "block - sms"
    communicate = _COMMUNICATE.format(pad=pad, number=number, warps=comm.workers, only=only)
    test = "\n    block = i32(block - parameters.comm_sms)\n    if block >= 0:" if first else "\n    if block < sms:"
    return "\n".join(lines) + test + compute + "\n    else:" + communicate


def make_entry(plan):
    """(entry function, numba type of its parameters) of a plan."""
    comm = plan.roles.get("communicator")
    alone = comm is not None and not comm.beside
    need(not alone or 32 * comm.workers == plan.threads, f"{plan.name}: {comm and comm.workers} communicators in blocks of "
         f"{plan.threads} threads. Every warp of a block must be one.")
    register_primitives()
    forget()
    steps = device(plan.kernel.steps)
    space = dict(cfg=plan.cfg, i32=_i32, begin=_begin(plan), follow=_follow(plan), get_epoch=_epoch(plan), warpgroup=_warpgroup, warp=_warp,
                 few=_set_registers("dec", plan.registers[0]), many=_set_registers("inc", plan.registers[1]), cuda=cuda)
    for name, role in plan.roles.items():
        space[name] = device(plan.drivers[name](plan.kernel.played(name, device), steps))
        space[f"bind_{name}"] = _bind(_globals_type(plan, role))
        space[f"share_{name}"] = view(SharedType(plan.places, role))
    exec(_source(plan), space)
    return space["entry"], _parameters_type(plan)


def build(plan):
    """Compile a plan. Returns (cubin, record); the record holds what a launch needs and what the assembler said."""
    cubin, record = compile_entry(*make_entry(plan), plan.threads, plan.name, plan.blocks)
    record.update(threads=plan.threads, fields=list(plan.fields), tensors=dict(plan.tensors), counters=list(plan.counters),
                  numbers=dict(plan.numbers), semaphores={n: [at, d.n] for n, (at, d) in plan.places.items() if isinstance(d, Semaphore)})
    return cubin, record


def to_ptx(plan):
    """The PTX text of a plan, before the assembler: for tests and for the curious."""
    return entry_ptx(*make_entry(plan), plan.threads, plan.name)
