// Clusters of blocks (compute capability 9.0), which read and write each other's shared memory.

namespace kit {

__device__ __forceinline__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" ::: "memory");
}
// The same in two steps: what was written before the one is seen after the other, unless nothing is to be seen.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive;\n" ::: "memory"); }
__device__ __forceinline__ void cluster_arrive_bare() { asm volatile("barrier.cluster.arrive.relaxed;\n" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait;\n" ::: "memory"); }

// Where block `rank` of the cluster has what lies at `local` in this block.
__device__ __forceinline__ unsigned place_of(unsigned local, int rank) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(there) : "r"(local), "r"(rank));
    return there;
}
// What it has there: a float2 or a float4.
template <class V> __device__ __forceinline__ V read_from(unsigned local, int rank) {
    const unsigned there = place_of(local, rank);
    V value;
    if constexpr (sizeof(V) == 8)
        asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];\n" : "=f"(value.x), "=f"(value.y) : "r"(there));
    else
        asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                     : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "r"(there));
    return value;
}
// Two floats to it.
__device__ __forceinline__ void give(unsigned local, int rank, float x, float y) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};\n" ::"r"(place_of(local, rank)), "f"(x), "f"(y) : "memory");
}

}  // namespace kit
