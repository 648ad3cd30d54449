"""Tells numba what roles may write: attributes and indexing of declared things, configurations, kernel classes, primitives."""

import operator

from llvmlite import ir
from numba import cuda
from numba.cuda import extending, types
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lower_registry
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate, infer_global, make_intrinsic_template, signature

from ..errors import ContractError, PknumbaError
from ..tiles import Config, Tile
from . import arithmetic, variant  # noqa: F401 - arithmetic: the operators of register tiles
from .declare import PRIMITIVES, Int, KernelMeta, Pair, Real, need
from .insist import insist
from .ptx import Ptx
from .types import I32, ConfigType, KernelType, Scoped, SemaphoreType, SharedType, TileType

_devices = {}
_registered = set()


def _documented():
    """A function with no statement but this one, after which numba looks for a first line."""


def device(function):
    """The one device version of a Python function."""
    if function not in _devices:
        lines = variant.lines() and function.__code__.co_code != _documented.__code__.co_code
        _devices[function] = cuda.jit(device=True, lineinfo=lines)(function)
    return _devices[function]


def forget():
    """Before a kernel is built: a role typed for another kernel would not record its boxes again."""
    _devices.clear()


# ---- configurations and kernel classes are types
for _type in (ConfigType, KernelType):
    lower_registry.lower_constant(_type)(lambda context, builder, ty, value: context.get_dummy_value())
extending.typeof_impl.register(Config)(lambda value, c: ConfigType(value))
extending.typeof_impl.register(KernelMeta)(lambda value, c: KernelType(value))


def _attributes(key, resolve, lower):
    body = {"key": key, "generic_resolve": lambda self, ty, name: resolve(self, ty, name)}
    typing_registry.register_attr(type(f"{key.__name__}Attributes", (AttributeTemplate,), body))
    lower_registry.lower_getattr_generic(key)(lower)


def _shared_field(_, ty, name):
    if name not in ty.places:
        raise ContractError(f"{ty.role.name}: s.{name} does not exist. Shared memory is what the kernel's shared() declares: "
                            f"{', '.join(ty.places)}.", field=name, role=ty.role.name)
    decl = ty.places[name][1]
    if isinstance(decl, Tile):
        return TileType(name, decl.shape, decl.dtype, decl.swizzle, ty.role)
    return SemaphoreType(name, decl.by, decl.of, ty.role, ring=True, n=decl.n)


def _config_field(_, ty, name):
    need(hasattr(ty.value, name), f"cfg.{name}: does not exist. A role reads fields and properties of {type(ty.value).__name__}. "
         "Declare it there.")
    need(name not in getattr(ty.value, "runtime", ()), f"cfg.{name}: may change from call to call. A role is compiled once for all "
         f"of them. Read g.{name} instead.")
    value = getattr(ty.value, name)
    return types.float64 if isinstance(value, float) else types.none if value is None else types.literal(value)


def _config_constant(context, b, ty, value, name):
    field = _config_field(None, ty, name)
    return context.get_constant_generic(b, field, getattr(ty.value, name))


_attributes(SharedType, _shared_field, lambda context, b, ty, value, name: b.add(value, ir.Constant(I32, ty.places[name][0])))
_attributes(ConfigType, _config_field, _config_constant)
_attributes(KernelType, lambda self, ty, name: self.context.resolve_value_type(device(getattr(ty.kernel, name))),
            lambda context, b, ty, value, name: context.get_dummy_value())


# ---- s.a[stage], s.a[stage, part], s.full[stage]
@typing_registry.register_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args, kws):
        base, index = args
        if isinstance(base, SemaphoreType) and base.ring:
            return signature(SemaphoreType(base.ident, base.by, base.of, base.role, ring=False), base, types.int32)
        if isinstance(base, TileType):
            depth = len(index) if isinstance(index, types.BaseTuple) else 1
            need(depth <= len(base.shape) - 2, f"{base}: {depth} indices. Only its leading dimensions can be indexed.")
            return signature(TileType(base.ident, base.shape[depth:], base.dtype, base.swizzle, base.role), base, index)


@lower_registry.lower(operator.getitem, SemaphoreType, types.Integer)
def _semaphore_item(context, b, sig, args):
    p, ring = Ptx(context, b, sig.args), sig.args[0]
    insist(p, ring.role, f"index of semaphore {ring.ident}", lambda: p.plain(args[1], sig.args[1]), p.const(ring.n))
    return b.add(args[0], b.shl(args[1], ir.Constant(I32, 3)))


@lower_registry.lower(operator.getitem, TileType, types.Integer)
@lower_registry.lower(operator.getitem, TileType, types.BaseTuple)
def _tile_item(context, b, sig, args):
    p, base, at = Ptx(context, b, sig.args), sig.args[0], args[0]
    index = p.plain(args[1], sig.args[1])
    for d, value in enumerate(index if isinstance(index, list) else [index]):
        insist(p, base.role, f"index {d} of tile {base}", value, p.const(base.shape[d]))
        at = b.add(at, p.scale(value, Tile(base.shape[d + 1:], base.dtype).nbytes))
    return at


# ---- primitives
def _result_type(result):
    named = {None: types.void, Int: types.int32, Pair: types.UniTuple(types.int32, 2), Real: types.float32}
    return result if isinstance(result, types.Type) else named[result]


def _typed(value):
    """An argument's type; of a default value that the call left out, the type that says which value it is."""
    if isinstance(value, types.Omitted):
        value = value.value
    return value if isinstance(value, types.Type) else types.none if value is None else types.literal(value)


def _check_scope(name, scopes, argtypes):
    for role in {t.role for t in argtypes if isinstance(t, Scoped)} if scopes else ():
        need(role.scope in scopes, f"{role.name}: calls {name}, but plays in a {role.scope}. {name} is for a {' or a '.join(scopes)}. "
             "Move the call to such a role.")


def _definition(name, entry):
    """The intrinsic's typing function; it has the parameters of the primitive, since numba binds arguments by them."""
    parameters = list(entry.signature.parameters.values())
    star = next((i for i, q in enumerate(parameters) if q.kind == q.VAR_POSITIONAL), None)

    def define(*given):
        argtypes = tuple(_typed(t) for t in given)
        _check_scope(name, entry.scopes, argtypes)
        rule = _lower(name, entry, argtypes)
        result, emit = rule if isinstance(rule, tuple) else (None, rule)
        restype = _result_type(result)

        def codegen(context, builder, sig, args):
            p = Ptx(context, builder, sig.args)
            values = [p.plain(v, t) for v, t in zip(args, sig.args)]
            if star is not None:
                values[star:] = values[star] if isinstance(values[star], list) else [values[star]]
            value = emit(p, *values)
            if restype is types.void:
                return context.get_dummy_value()
            return context.make_tuple(builder, restype, value) if isinstance(value, tuple) else value

        fixed = argtypes if star is None else argtypes[:star] + (types.StarArgTuple.from_types(argtypes[star:]),)
        return restype(*fixed), codegen

    # numba wants plain parameters; their defaults are looked up by name, since not every value has a literal text
    space = {"define": define, "defaults": {q.name: q.default for q in parameters}}
    texts = [("*" if q.kind == q.VAR_POSITIONAL else "") + q.name for q in parameters]
    bound = [t + (f"=defaults[{q.name!r}]" if q.default is not q.empty else "") for t, q in zip(texts, parameters)]
    exec(f"def {name}({', '.join(['tyctx', *bound])}):\n    return define({', '.join(texts)})", space)
    return space[name]


def _lower(name, entry, argtypes):
    """What the lowering says of these types; a type that it knows nothing of is the role's mistake."""
    try:
        return entry.lower(*argtypes)
    except (AttributeError, TypeError, ValueError) as error:
        if isinstance(error, PknumbaError):
            raise
        role = next((t.role.name for t in argtypes if isinstance(t, Scoped) and t.role), "role")
        raise ContractError(f"{role}: calls {name}({', '.join(map(str, argtypes))}). It is {name}{entry.signature}. Look at its docstring.",
                            primitive=name, role=role) from error


def register_primitives():
    """Register every primitive declared since the last time. Raises ContractError for one without a lowering."""
    for name, entry in PRIMITIVES.items():
        if name in _registered:
            continue
        need(entry.lower is not None, f"primitive {name}: has no lowering.")
        template = make_intrinsic_template(entry.public, _definition(name, entry), name, prefer_literal=True, kwargs={"target": "cuda"})
        extending.infer(template)
        infer_global(entry.public, types.Function(template))
        _registered.add(name)


def view(target):
    """An intrinsic that gives a value (an address, a tuple of globals) the numba type ``target``."""
    @extending.intrinsic
    def cast(tyctx, value):
        return target(value), lambda context, b, sig, args: args[0]
    return cast


__all__ = ["device", "forget", "register_primitives", "view"]
