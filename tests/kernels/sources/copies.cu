#define ASM(text) asm volatile(text ::: "memory")
__device__ __forceinline__ void copy(float* to, const float* from) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 16;"
                 :: "l"(to), "r"((unsigned)__cvta_generic_to_shared(from)) : "memory");
}
__device__ __forceinline__ void commit() { ASM("cp.async.bulk.commit_group;"); }
__device__ __forceinline__ void wait() { ASM("cp.async.bulk.wait_group.read 0;"); }
__device__ __forceinline__ void wait_but_one() { ASM("cp.async.bulk.wait_group.read 1;"); }
__device__ __noinline__ void finish(float* to) { to[9] = 1; commit(); wait(); }
__device__ __noinline__ void copy_all(float* to, const float* from, int n) {
    for (int i = 0; i < n; ++i) copy(to + 4 * i, from);
    commit();
}
extern "C" __global__ void k(float* out, int n) {
    __shared__ __align__(16) float kept[64];
    kept[threadIdx.x] = n;
    __syncthreads();
    const bool first = threadIdx.x == 0;
    BODY
}
