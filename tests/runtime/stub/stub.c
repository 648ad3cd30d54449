/* A stand-in for libcuda that runs without a GPU: device memory is shared host memory, every call is logged, kernels do nothing.
 *
 * stub_log() returns the calls so far, one a line; stub_clear() empties the log; stub_fail(name, code) makes the next call of a
 * function return a code.  IPC handles name the file behind it, so that processes really see each other's "device" memory.
 * STUB_DEVICES, STUB_SMS, STUB_MPS, STUB_FIRST (number of the first device on the node) set what it pretends to be; all devices of a process have different UUIDs.
 * There is no multicast function in it, on purpose.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char log_text[1 << 20];
static size_t log_at;
static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER;
static char fail_name[64];
static int fail_code;

const char *stub_log(void) { return log_text; }
void stub_clear(void) { log_at = 0; log_text[0] = 0; }
void stub_fail(const char *name, int code) { snprintf(fail_name, sizeof fail_name, "%s", name); fail_code = code; }

static int called(const char *name, const char *format, ...) {
    va_list list;
    pthread_mutex_lock(&busy);
    if (log_at > sizeof log_text - 4096) log_at = 0;
    log_at += snprintf(log_text + log_at, 256, "%s", name);
    va_start(list, format);
    log_at += vsnprintf(log_text + log_at, 2048, format, list);
    va_end(list);
    log_at += snprintf(log_text + log_at, 8, "\n");
    int code = 0;
    if (fail_code && !strcmp(name, fail_name)) { code = fail_code; fail_code = 0; }
    pthread_mutex_unlock(&busy);
    return code;
}
#define ENTER(...) do { int code = called(__func__, __VA_ARGS__); if (code) return code; } while (0)
static int setting(const char *name, int otherwise) { const char *text = getenv(name); return text ? atoi(text) : otherwise; }

/* ---- devices and contexts: the context of device d is the address contexts + d */
static char contexts[64];
static __thread void *stack[64];
static __thread int depth;

int cuInit(unsigned flags) { ENTER(" %u", flags); return setting("STUB_DEVICES", 1) ? 0 : 100; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuDeviceGetCount(int *n) { *n = setting("STUB_DEVICES", 1); return 0; }
int cuDeviceGet(int *d, int i) { if (i >= setting("STUB_DEVICES", 1)) return 101; *d = i; return 0; }
int cuDeviceGetName(char *s, int n, int d) { snprintf(s, n, "STUB H200 %d", d); return 0; }
int cuDeviceGetUuid(char *u, int d) { memset(u, 16 + setting("STUB_FIRST", 0) + d, 16); return 0; }
int cuDeviceTotalMem_v2(size_t *b, int d) { *b = 80ull << 30; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) {
    switch (a) {
    case 16: *v = setting("STUB_SMS", 132); break;
    case 75: *v = setting("STUB_MAJOR", 9); break;
    case 76: *v = 0; break;
    case 97: *v = 232448; break;
    case 133: *v = setting("STUB_MPS", 0); break;
    case 20: *v = setting("STUB_MODE", 0); break;
    default: *v = 1;
    }
    return 0;
}
int cuDeviceCanAccessPeer(int *v, int a, int b) { ENTER(" %d %d", a, b); *v = setting("STUB_PEERS", 1); return 0; }
int cuDeviceGetP2PAttribute(int *v, int what, int a, int b) { *v = setting("STUB_PEERS", 1); return 0; }
int cuDeviceGetPCIBusId(char *s, int n, int d) { snprintf(s, n, "00000000:%02X:00.0", 16 + d); return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { ENTER(" %d", d); *c = contexts + d; return 0; }
int cuDevicePrimaryCtxRelease_v2(int d) { ENTER(" %d", d); return 0; }
int cuCtxGetCurrent(void **c) { *c = stack[depth]; return 0; }
int cuCtxSetCurrent(void *c) { ENTER(" %d", (int)((char *)c - contexts)); stack[depth] = c; return 0; }
int cuCtxPushCurrent_v2(void *c) { stack[++depth] = c; return 0; }
int cuCtxPopCurrent_v2(void **c) { if (c) *c = stack[depth]; depth--; return 0; }
int cuCtxGetDevice(int *d) { *d = (char *)stack[depth] - contexts; return 0; }
int cuCtxSynchronize(void) { ENTER(""); return 0; }
int cuCtxEnablePeerAccess(void *c, unsigned f) { ENTER(" %d", (int)((char *)c - contexts)); return 0; }

/* ---- memory */
static struct { void *at; size_t n; int fd; } blocks[4096];
static int count;

int cuMemAlloc_v2(uint64_t *p, size_t n) {
    ENTER(" %zu", n);
    if (n > 1ull << 32 || count == 4096) return 2;
    int fd = memfd_create("stub", 0);
    if (fd < 0 || ftruncate(fd, n)) return 2;
    void *at = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (n < 1 << 22) memset(at, 0xff, n);   /* garbage, as real memory has */
    pthread_mutex_lock(&busy);
    int i = 0;
    while (i < count && blocks[i].at) i++;              /* places are used again */
    if (i == count) count++;
    blocks[i].n = n; blocks[i].fd = fd; blocks[i].at = at;
    pthread_mutex_unlock(&busy);
    *p = (uint64_t)at;
    return 0;
}
int cuMemFree_v2(uint64_t p) {
    ENTER("");
    for (int i = 0; i < count; i++)
        if (blocks[i].at == (void *)p && p) { munmap(blocks[i].at, blocks[i].n); close(blocks[i].fd); blocks[i].at = 0; return 0; }
    return 1;
}
int stub_live(void) { int n = 0; for (int i = 0; i < count; i++) n += !!blocks[i].at; return n; }
int cuMemHostAlloc(void **p, size_t n, unsigned flags) { ENTER(" %zu %u", n, flags); *p = aligned_alloc(256, (n + 255) / 256 * 256); return 0; }
int cuMemHostGetDevicePointer_v2(uint64_t *d, void *h, unsigned f) { *d = (uint64_t)h; return 0; }
int cuMemFreeHost(void *p) { ENTER(""); free(p); return 0; }
int cuMemGetInfo_v2(size_t *a, size_t *b) { *a = *b = 80ull << 30; return 0; }
int cuPointerGetAttribute(int *v, int a, uint64_t p) { ENTER(" %d", a); *v = 0; return 0; }
int cuMemcpyHtoDAsync_v2(uint64_t d, const void *s, size_t n, void *st) { ENTER(" %zu", n); memcpy((void *)d, s, n); return 0; }
int cuMemcpyDtoHAsync_v2(void *d, uint64_t s, size_t n, void *st) { ENTER(" %zu", n); memcpy(d, (void *)s, n); return 0; }
int cuMemcpyAsync(uint64_t d, uint64_t s, size_t n, void *st) { ENTER(" %zu", n); memcpy((void *)d, (void *)s, n); return 0; }
int cuMemsetD8Async(uint64_t p, unsigned char v, size_t n, void *st) { ENTER(" %d %zu", v, n); memset((void *)p, v, n); return 0; }
int cuMemsetD32Async(uint64_t p, unsigned v, size_t n, void *st) { ENTER(" %u %zu", v, n); for (size_t i = 0; i < n; i++) ((uint32_t *)p)[i] = v; return 0; }
typedef struct { size_t x, y; int type; const void *host; uint64_t device; void *array; size_t pitch; } side;
int cuMemcpy2DAsync_v2(const struct { side s, d; size_t width, height; } *c, void *st) {
    ENTER(" %d<-%d %zu x %zu pitch %zu<-%zu", c->d.type, c->s.type, c->height, c->width, c->d.pitch, c->s.pitch);
    const char *s = c->s.type == 1 ? c->s.host : (const char *)c->s.device;
    char *d = c->d.type == 1 ? (char *)c->d.host : (char *)c->d.device;
    for (size_t i = 0; i < c->height; i++) memcpy(d + i * c->d.pitch, s + i * c->s.pitch, c->width);
    return 0;
}

/* ---- memory of other processes: a handle names the file behind the memory */
typedef struct { char path[48]; uint64_t n, unused; } handle;
static struct { void *at; size_t n; } opened[4096];
int cuIpcGetMemHandle(handle *h, uint64_t p) {
    ENTER("");
    for (int i = 0; i < count; i++)
        if (blocks[i].at == (void *)p && p) {
            memset(h, 0, sizeof *h);
            snprintf(h->path, 48, "/proc/%d/fd/%d", getpid(), blocks[i].fd);
            h->n = blocks[i].n;
            return 0;
        }
    return 1;
}
int cuIpcOpenMemHandle_v2(uint64_t *p, handle h, unsigned flags) {
    ENTER(" %u", flags);
    int fd = open(h.path, O_RDWR);
    if (fd < 0) return 205;
    void *at = mmap(0, h.n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    pthread_mutex_lock(&busy);
    for (int i = 0; i < 4096; i++)
        if (!opened[i].at) { opened[i].at = at; opened[i].n = h.n; break; }
    pthread_mutex_unlock(&busy);
    *p = (uint64_t)at;
    return 0;
}
int cuIpcCloseMemHandle(uint64_t p) {
    ENTER("");
    for (int i = 0; i < 4096; i++)
        if (opened[i].at == (void *)p && p) { munmap(opened[i].at, opened[i].n); opened[i].at = 0; return 0; }
    return 1;
}

/* ---- streams, modules, launches */
int cuStreamCreate(void **s, unsigned f) { static int n; ENTER(" %u", f); *s = contexts + 32 + ++n; return 0; }
int cuStreamDestroy_v2(void *s) { ENTER(""); return 0; }
int cuStreamSynchronize(void *s) { ENTER(" %d", s != 0); return 0; }
int cuStreamQuery(void *s) { ENTER(""); return 0; }
int cuEventCreate(void **e, unsigned f) { ENTER(" %u", f); *e = contexts + 30; return 0; }
int cuEventRecord(void *e, void *s) { ENTER(""); return 0; }
int cuEventQuery(void *e) { ENTER(""); return 0; }
int cuEventDestroy_v2(void *e) { ENTER(""); return 0; }
int cuStreamWaitEvent(void *s, void *e, unsigned f) { ENTER(""); return 0; }
int cuEventElapsedTime(float *ms, void *a, void *b) { ENTER(""); *ms = 2.5f; return 0; }
int cuStreamBeginCapture_v2(void *s, int mode) { ENTER(" %d", mode); return 0; }
int cuStreamEndCapture(void *s, void **g) { ENTER(""); *g = contexts + 25; return 0; }
int cuGraphInstantiateWithFlags(void **x, void *g, unsigned long long f) { ENTER(" %d", g == (void *)(contexts + 25)); *x = contexts + 26; return 0; }
int cuGraphLaunch(void *x, void *s) { ENTER(" %d", x == (void *)(contexts + 26)); return 0; }
int cuGraphDestroy(void *g) { ENTER(""); return 0; }
int cuGraphExecDestroy(void *x) { ENTER(""); return 0; }
int cuModuleLoadData(void **m, const void *d) { ENTER(" %.8s", (const char *)d); *m = contexts + 20; return 0; }
int cuModuleUnload(void *m) { ENTER(""); return 0; }
int cuModuleGetFunction(void **f, void *m, const char *n) { ENTER(" %s", n); *f = contexts + 21; return 0; }
int cuFuncLoad(void *f) { ENTER(""); return 0; }
int cuFuncGetAttribute(int *v, int a, void *f) { *v = a == 4 ? 168 : 0; return 0; }
int cuFuncSetAttribute(void *f, int a, int v) { ENTER(" %d=%d", a, v); return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *f, int b, size_t s) { ENTER(" %d %zu", b, s); *n = 1; return 0; }
typedef struct { int id, pad; uint32_t v[16]; } attribute;
typedef struct { unsigned g[3], b[3], shared; void *stream; attribute *at; unsigned n; } config;
int cuOccupancyMaxActiveClusters(int *n, void *f, const config *c) { ENTER(" %u", c->g[0]); *n = 66; return 0; }
int cuLaunchKernelEx(const config *c, void *f, void **p, void **extra) {
    char text[512] = "";
    int at = 0;
    for (unsigned i = 0; i < c->n; i++) at += snprintf(text + at, 64, " attr%d=%u,%u,%u", c->at[i].id, c->at[i].v[0], c->at[i].v[1], c->at[i].v[2]);
    ENTER(" grid %u,%u,%u block %u,%u,%u shared %u stream %d device %d first %u align %d%s", c->g[0], c->g[1], c->g[2], c->b[0], c->b[1], c->b[2],
          c->shared, c->stream != 0, (int)((char *)stack[depth] - contexts), p && p[0] ? *(uint32_t *)p[0] : 0, p && p[0] ? (int)((uintptr_t)p[0] % 128) : -1,
          text);
    return 0;
}
int cuTensorMapEncodeTiled(void *t, int dtype, unsigned rank, uint64_t p, const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                           const uint32_t *steps, int interleave, int swizzle, int l2, int fill) {
    char more[300] = "";
    for (unsigned i = 2, n = 0; i < rank && i < 5; i++)
        n += sprintf(more + n, " outer %lu stride %lu box %u step %u", dims[i], strides[i - 1], box[i], steps[i]);
    ENTER(" dtype %d rank %u dims %lu,%lu stride %lu box %u,%u steps %u,%u interleave %d swizzle %d l2 %d fill %d align %d%s", dtype, rank,
          dims[0], dims[1], strides[0], box[0], box[1], steps[0], steps[1], interleave, swizzle, l2, fill, (int)((uintptr_t)t % 64), more);
    memset(t, 0xab, 128);
    return 0;
}
int cuGetErrorName(int code, const char **s) {
    *s = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 1 ? "CUDA_ERROR_INVALID_VALUE" : code == 400 ? "CUDA_ERROR_INVALID_HANDLE"
       : code == 217 ? "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED" : code == 720 ? "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE" : 0;
    return *s ? 0 : 1;
}
int cuGetErrorString(int code, const char **s) { *s = "stub"; return 0; }
