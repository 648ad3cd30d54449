"""A compiler cache of its own for this folder, and the disassembler."""

import pytest

from . import sass


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Nothing here reads or fills the user's cache of compiled kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PKNUMBA_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        yield


@pytest.fixture
def disassemble(tmp_path):
    """Function (cubin) -> sass.Code."""
    tool = sass.find_nvdisasm()
    if tool is None:
        pytest.skip("no nvdisasm: pip install nvidia-cuda-nvdisasm")
    return lambda cubin: sass.Code(cubin, tool, tmp_path)
