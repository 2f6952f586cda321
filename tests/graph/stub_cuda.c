/* A CUDA driver that launches nothing: it answers as an sm_90 device does, and keeps the last launch for the test. */
#include <stdio.h>
#include <string.h>

static long long last[9];
static int launches, modules, context = 1, taken = 4;
static unsigned char arguments[16][4];

int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { (void)device; *value = attribute == 75 ? 9 : 0; return 0; }
int cuDevicePrimaryCtxRetain(void **made, int device) { (void)device; *made = &context; return 0; }
int cuCtxSetCurrent(void *chosen) { context = chosen != 0; return 0; }
int cuCtxGetCurrent(void **chosen) { *chosen = &context; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuModuleLoadData(void **module, const void *code) {
    /* Machine code is an ELF file. */
    if (memcmp(code, "\177ELF", 4) != 0) return 200;
    *module = &modules;
    modules++;
    return 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) { (void)module; *function = (void *)name; return 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) { (void)function; (void)attribute; (void)value; return 0; }
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **given, void **extra) {
    long long values[9] = {gx, gy, gz, bx, by, bz, shared, (long long)stream, (long long)function};
    (void)extra;
    if (!context) return 201;
    memcpy(last, values, sizeof(last));
    launches++;
    for (int at = 0; at < taken; at++) memcpy(arguments[at], given[at], 4);
    return 0;
}
struct config { unsigned gx, gy, gz, bx, by, bz, shared; void *stream, *attributes; unsigned count; };
int cuLaunchKernelEx(const struct config *config, void *function, void **given, void **extra) {
    if (config->attributes || config->count) return 1;
    return cuLaunchKernel(function, config->gx, config->gy, config->gz, config->bx, config->by, config->bz, config->shared,
                          config->stream, given, extra);
}
/* How many arguments the kernels have, at most 16; the test sees the first four bytes of each. */
void stub_takes(int count) { taken = count; }
void stub_new_thread(void) { context = 0; }
int stub_modules(void) { return modules; }
int stub_launches(void) { return launches; }
const long long *stub_last(void) { return last; }
int stub_argument(int at) { int value; memcpy(&value, arguments[at], 4); return value; }
