/*
 * A CUDA driver that fails on demand. TRUENO_DRIVER says how; TRUENO_DRIVER_LOG names a file that gets a line when the
 * failure is reached.
 *   hang-init      cuInit never returns
 *   hang-context   cuDevicePrimaryCtxRetain never returns
 *   no-init        cuInit fails
 *   no-device      there is no device
 *   no-memory      no memory can be allocated or page-locked
 *   no-launch      everything works but kernels: the first launch fails and takes the context with it
 * Device memory is ordinary memory, and all work is done at once.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, NO_DEVICE = 100, LAUNCH_FAILED = 719, UNKNOWN = 999 };

static int lost;

static int mode_is(const char *name) {
    const char *mode = getenv("TRUENO_DRIVER");
    return mode && strcmp(mode, name) == 0;
}

static void log_reached(void) {
    const char *path = getenv("TRUENO_DRIVER_LOG");
    int file = path ? open(path, O_CREAT | O_WRONLY | O_APPEND, 0600) : -1;
    if (file >= 0) {
        if (write(file, "reached\n", 8) != 8) abort();
        close(file);
    }
}

static void hang_if(const char *name) {
    if (mode_is(name)) {
        log_reached();
        for (;;) pause();
    }
}

static int fail_if(const char *name, int error) {
    if (!mode_is(name)) return SUCCESS;
    log_reached();
    return error;
}

int cuInit(unsigned flags) {
    (void)flags;
    hang_if("hang-init");
    return fail_if("no-init", UNKNOWN);
}

int cuGetErrorName(int error, const char **name) {
    *name = error == OUT_OF_MEMORY   ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED"
            : error == NO_DEVICE     ? "CUDA_ERROR_NO_DEVICE"
                                     : "CUDA_ERROR_UNKNOWN";
    return SUCCESS;
}

int cuGetErrorString(int error, const char **text) {
    return cuGetErrorName(error, text);
}

int cuDriverGetVersion(int *version) {
    *version = 12080;
    return SUCCESS;
}

int cuDeviceGetCount(int *count) {
    *count = mode_is("no-device") ? 0 : 1;
    if (*count == 0) log_reached();
    return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return SUCCESS;
}

int cuDeviceGetName(char *name, int len, int device) {
    (void)device;
    strncpy(name, "Broken device", (size_t)len);
    return SUCCESS;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    (void)device;
    *bytes = (size_t)16 << 30;
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    switch (attribute) {
    case 1: *value = 1024; break;             /* threads per block */
    case 8: case 81: *value = 100 << 10; break; /* shared memory per block and per multiprocessor */
    case 97: *value = 99 << 10; break;        /* shared memory per block, if asked for */
    case 10: *value = 32; break;              /* warp size */
    case 16: *value = 16; break;              /* multiprocessors */
    case 38: *value = 32 << 20; break;        /* L2 cache */
    case 39: *value = 2048; break;            /* threads per multiprocessor */
    case 75: *value = 9; break;               /* compute capability */
    case 76: *value = 0; break;
    default: *value = 1;
    }
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    hang_if("hang-context");
    *context = &lost;
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    return SUCCESS;
}

static int state(void) {
    return lost ? LAUNCH_FAILED : SUCCESS;
}

int cuCtxPushCurrent_v2(void *context) {
    (void)context;
    return SUCCESS;
}

int cuCtxPopCurrent_v2(void **context) {
    *context = &lost;
    return SUCCESS;
}

int cuCtxSynchronize(void) {
    return state();
}

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *total = (size_t)16 << 30;
    *free = mode_is("no-memory") ? 0 : *total;
    return state();
}

static int allocate(void **address, size_t len) {
    if (state() || fail_if("no-memory", OUT_OF_MEMORY)) return state() ? state() : OUT_OF_MEMORY;
    return posix_memalign(address, 4096, len) ? OUT_OF_MEMORY : SUCCESS;
}

int cuMemAlloc_v2(unsigned long long *address, size_t len) {
    void *memory = NULL;
    int status = allocate(&memory, len);
    *address = (unsigned long long)memory;
    return status;
}

int cuMemFree_v2(unsigned long long address) {
    free((void *)address);
    return state();
}

int cuMemHostAlloc(void **address, size_t len, unsigned flags) {
    (void)flags;
    return allocate(address, len);
}

int cuMemFreeHost(void *address) {
    free(address);
    return state();
}

int cuMemHostRegister_v2(void *address, size_t len, unsigned flags) {
    (void)address, (void)len, (void)flags;
    return state() ? state() : fail_if("no-memory", OUT_OF_MEMORY);
}

int cuMemHostUnregister(void *address) {
    (void)address;
    return state();
}

int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t len, void *stream) {
    (void)stream;
    if (!lost) memcpy((void *)to, from, len);
    return state();
}

int cuMemcpyDtoHAsync_v2(void *to, unsigned long long from, size_t len, void *stream) {
    (void)stream;
    if (!lost) memcpy(to, (void *)from, len);
    return state();
}

int cuMemsetD8Async(unsigned long long to, unsigned char byte, size_t len, void *stream) {
    (void)stream;
    if (!lost) memset((void *)to, byte, len);
    return state();
}

int cuStreamCreate(void **stream, unsigned flags) {
    (void)flags;
    *stream = &lost;
    return state();
}

int cuStreamDestroy_v2(void *stream) {
    (void)stream;
    return state();
}

int cuStreamSynchronize(void *stream) {
    (void)stream;
    return state();
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    (void)stream, (void)event, (void)flags;
    return state();
}

int cuEventCreate(void **event, unsigned flags) {
    (void)flags;
    *event = &lost;
    return state();
}

int cuEventDestroy_v2(void *event) {
    (void)event;
    return state();
}

int cuEventRecord(void *event, void *stream) {
    (void)event, (void)stream;
    return state();
}

int cuEventQuery(void *event) {
    (void)event;
    return state();
}

int cuEventSynchronize(void *event) {
    (void)event;
    return state();
}

int cuEventElapsedTime(float *milliseconds, void *start, void *end) {
    (void)start, (void)end;
    *milliseconds = 0;
    return state();
}

int cuModuleLoadDataEx(void **module, const void *image, unsigned count, void *options, void **values) {
    (void)image, (void)count, (void)options, (void)values;
    *module = &lost;
    return state();
}

int cuModuleUnload(void *module) {
    (void)module;
    return state();
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    (void)module, (void)name;
    *function = &lost;
    return state();
}

int cuFuncGetAttribute(int *value, int attribute, void *function) {
    (void)function;
    *value = attribute == 0 ? 1024 : 0; /* threads per block; no memory, no registers */
    return state();
}

int cuFuncSetAttribute(void *function, int attribute, int value) {
    (void)function, (void)attribute, (void)value;
    return state();
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t shared) {
    (void)function, (void)threads, (void)shared;
    *blocks = 1;
    return state();
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared, (void)stream, (void)arguments, (void)extra;
    lost = 1;
    log_reached();
    return LAUNCH_FAILED;
}
