// What kernels on tensor cores need of PTX: copies to shared memory that arrive later, products of a warp, clusters of blocks.

__device__ __forceinline__ unsigned shared_address(const void* at) {
    return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

// BYTES from global to shared memory, later; zeros where `valid` says that there is nothing.
template <int BYTES> __device__ __forceinline__ void copy_later(unsigned to, const void* from, bool valid) {
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(valid ? 16 : 0));
    else
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 8, %2;\n" ::"r"(to), "l"(from), "r"(valid ? 8 : 0));
}
__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;\n"); }
template <int LEFT> __device__ __forceinline__ void wait_groups() { asm volatile("cp.async.wait_group %0;\n" ::"n"(LEFT)); }

// Reads and writes of a thread's own places: volatile, so that they stay in order with the copies to them.
__device__ __forceinline__ void read_own(unsigned (&to)[4], unsigned from) {
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from));
}
__device__ __forceinline__ void read_own(unsigned (&to)[2], unsigned from) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n" : "=r"(to[0]), "=r"(to[1]) : "r"(from));
}
__device__ __forceinline__ void write_own(unsigned to, unsigned short value) {
    asm volatile("st.shared.u16 [%0], %1;\n" ::"r"(to), "h"(value));
}

#if T_IS_BFLOAT16
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#else
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#endif
__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile(MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#if SPLIT > 1
__device__ __forceinline__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" ::: "memory");
}
// What block `rank` of the cluster has at the place that is `local` in this block: a float2 or a float4.
template <class V> __device__ __forceinline__ V read_from(unsigned local, int rank) {
    unsigned there;
    V value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(there) : "r"(local), "r"(rank));
    if constexpr (sizeof(V) == 8)
        asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];\n" : "=f"(value.x), "=f"(value.y) : "r"(there));
    else
        asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                     : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "r"(there));
    return value;
}
#endif
