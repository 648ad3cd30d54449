"""Arrays of each library for tests of operators on a GPU: made from NumPy, read back to NumPy, with guard elements around."""

import numpy as np
import pytest

from pknumba.runtime import DeviceArray

from ..kernels.products import DTYPES

__all__ = ["torch", "LIBRARIES", "to_numpy", "on_device", "guarded", "assert_untouched", "signs"]


class _Torch:
    """torch with CUDA, imported when a test first needs it; tests skip without it."""

    def __getattr__(self, name):
        if name.startswith(("_", "pytest")):                 # pytest looks at everything that a module holds
            raise AttributeError(name)
        module = pytest.importorskip("torch")
        if not module.cuda.is_available():
            pytest.skip("torch without CUDA")
        return getattr(module, name)


torch = _Torch()


def _cupy(x):
    cupy = pytest.importorskip("cupy")
    try:
        return cupy.asarray(x)
    except (TypeError, ValueError, KeyError):
        pytest.skip(f"CuPy does not know {x.dtype}")


LIBRARIES = {"torch": lambda x: on_device(x), "cupy": _cupy, "DeviceArray": lambda x: DeviceArray.of(np.ascontiguousarray(x))}


def on_device(x):
    """A NumPy array as a torch tensor on the current device."""
    name = x.dtype.name
    bits = torch.from_numpy(np.ascontiguousarray(x).view(np.int16))
    return bits.cuda().view(getattr(torch, name))


def to_numpy(x):
    """Any of our arrays as NumPy, once everything on the device has run."""
    root = type(x).__module__.partition(".")[0]
    if root == "torch":
        torch.cuda.synchronize()
        name = str(x.dtype).removeprefix("torch.")
        return x.detach().contiguous().view(torch.int16).cpu().numpy().view(DTYPES[name])
    if root == "cupy":
        import cupy
        cupy.cuda.Device().synchronize()
        return cupy.asnumpy(x)
    return x.get()


def guarded(shape, dtype, left=8, pitch_of=8):
    """(torch tensor of that shape, the larger one around it), full of NaN. ``left``: elements before a row; rows are
    a multiple of ``pitch_of`` elements apart."""
    m, n = shape
    width = -(-(left + n + 9) // pitch_of) * pitch_of
    around = torch.full((m + 4, width), float("nan"), dtype=getattr(torch, dtype), device="cuda")
    return around[2:2 + m, left:left + n], around


def assert_untouched(view, around):
    """Everything around the view is NaN still."""
    seen = around.clone()
    left = view.storage_offset() % around.stride(0)
    seen[2:2 + view.shape[0], left:left + view.shape[1]] = float("nan")
    assert bool(torch.isnan(seen).all()), f"{int((~torch.isnan(seen)).sum())} elements around the result were written"


def signs(*shape, seed=0):
    """bfloat16 tensor of -1, 0 and 1: sums of up to 256 of their products are exact in bfloat16."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randint(-1, 2, shape, generator=generator, device="cuda", dtype=torch.int8).bfloat16()
