"""What the tests of the runtime share: kernels in CUDA C++, compiled by NVRTC, so that nothing but the runtime is under test."""

import struct

import pytest

from pknumba.runtime import World

__all__ = ["SOURCE", "cubin", "world", "u32", "u64"]

SOURCE = r"""
extern "C" __global__ void add(unsigned *x, unsigned n, unsigned by) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += by;
}
extern "C" __global__ void spread(unsigned long long *peers, unsigned size, unsigned value) {   // writes into every rank
    if (threadIdx.x < size) ((unsigned *)peers[threadIdx.x])[value] = value + 1;
}
extern "C" __global__ void wait_for(const unsigned *flag, const unsigned long long *context, unsigned expected) {
    unsigned long long limit = context[2], start, now;
    volatile unsigned *record = (volatile unsigned *)context[0], *abort = (volatile unsigned *)context[1];
    unsigned rank = (unsigned)context[3], number = (unsigned)(context[4] >> 32);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    while (*(volatile const unsigned *)flag < expected) {
        if (*abort) return;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (limit && now - start > limit) {
            record[1] = rank; record[2] = 3; record[3] = 1; record[4] = 2; record[5] = 7; record[6] = expected; record[7] = *flag;
            record[8] = number;
            __threadfence_system();
            record[0] = 0x600DF00D;
            *abort = 1;
            return;
        }
    }
}
struct alignas(64) Map { char bytes[128]; };
extern "C" __global__ void box(const __grid_constant__ Map map, unsigned short *out, int row, int col) {
    __shared__ alignas(128) unsigned short tile[8 * 64];
    __shared__ alignas(8) unsigned long long bar;
    unsigned b = (unsigned)__cvta_generic_to_shared(&bar), t = (unsigned)__cvta_generic_to_shared(tile);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" :: "r"(b) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" :: "r"(b) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3}], [%4];"
                     :: "r"(t), "l"(&map), "r"(col), "r"(row), "r"(b) : "memory");
    }
    __syncthreads();
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(b) : "memory");
    for (unsigned i = threadIdx.x; i < 512; i += blockDim.x) out[i] = tile[i];
}
"""


@pytest.fixture(scope="module")
def cubin():
    core = pytest.importorskip("cuda.core")
    program = core.Program(SOURCE, "c++", core.ProgramOptions(arch="sm_90a", std="c++17"))
    return bytes(program.compile("cubin").code)


@pytest.fixture
def world():
    with World.local(1, executor="gpu", wait_limit_s=0.3) as world:
        yield world


def u32(*values):
    return [struct.pack("<I", v & 0xffffffff) for v in values]


def u64(value):
    return struct.pack("<Q", value)
