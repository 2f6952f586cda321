// NVIDIA's own calculator: blocks on a multiprocessor, for each line of a device's limits and a launch.
#include <cstdio>
#include <climits>
#include <cuda_occupancy.h>
int main() {
    int major, minor, threads_sm, shared_sm, optin, reserved, t, r, s;
    while (scanf("%d %d %d %d %d %d %d %d %d", &major, &minor, &threads_sm, &shared_sm, &optin, &reserved,
                 &t, &r, &s) == 9) {
        cudaOccDeviceProp p; cudaOccFuncAttributes f; cudaOccDeviceState d; cudaOccResult out;
        p.computeMajor = major; p.computeMinor = minor; p.maxThreadsPerBlock = 1024;
        p.maxThreadsPerMultiprocessor = threads_sm; p.regsPerBlock = p.regsPerMultiprocessor = 65536;
        p.warpSize = 32; p.sharedMemPerBlock = 48 * 1024; p.sharedMemPerMultiprocessor = shared_sm;
        p.numSms = 1; p.sharedMemPerBlockOptin = optin; p.reservedSharedMemPerBlock = reserved;
        f.maxThreadsPerBlock = INT_MAX; f.numRegs = r; f.sharedSizeBytes = 0;
        f.partitionedGCConfig = PARTITIONED_GC_OFF; f.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        f.maxDynamicSharedSizeBytes = optin; f.numBlockBarriers = 1;
        int code = cudaOccMaxActiveBlocksPerMultiprocessor(&out, &p, &f, &d, t, s);
        printf("%d\n", code ? -code : out.activeBlocksPerMultiprocessor);
    }
}
