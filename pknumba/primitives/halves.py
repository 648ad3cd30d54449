"""PTX for pairs of 16-bit floats in one 32-bit register: what lowerings of registers and of reductions share."""

from ..lowering import need

#: Names of the two 16-bit floats in PTX.
KIND = {"bfloat16": "bf16", "float16": "f16"}


def check_dtype(name, dtype):
    """Raise ContractError unless values can be rounded to ``dtype``. float32, which changes nothing, is the interpreter's only."""
    need(dtype in (*KIND, "float32"), f"{name}: dtype = {dtype!r}. Values are rounded to {' or '.join(KIND)}.")


def join(p, dtype, low, high):
    """Two f32 rounded (nearest even) into one register."""
    return p(f"cvt.rn.{KIND[dtype]}x2.f32 $0, $2, $1;", low, high, out=[p.i32], pure=True)


def split(p, dtype, pair):
    """(low, high) of a register as f32."""
    if dtype == "bfloat16":
        low, high = p.b.shl(pair, p.const(16)), p.b.and_(pair, p.const(-65536))
        return p.b.bitcast(low, p.f32), p.b.bitcast(high, p.f32)
    out = p("{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }", pair, out=[p.f32, p.f32], pure=True)
    return p.b.extract_value(out, 0), p.b.extract_value(out, 1)
