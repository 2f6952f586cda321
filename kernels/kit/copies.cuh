// Copies to shared memory that arrive later, and barriers there.

namespace kit {

// A place in shared memory as instructions for it want it: 32 bits.
__device__ __forceinline__ unsigned shared_address(const void* at) {
    return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

// Copies of a thread (cp.async, compute capability 8.0): BYTES, 8 or 16, from global to shared memory, zeros where `valid` says
// that there is nothing. They are closed into groups; wait_groups<N> returns when at most N of the thread's groups are under
// way. What others copied is there after a barrier behind their wait.
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

// Barriers in shared memory (mbarrier, 8 bytes; compute capability 9.0), which count arrivals and bytes of copies.
__device__ __forceinline__ void start_barrier(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void wait_for(unsigned barrier, int parity) {
    unsigned done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (done == 0);
}
__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void expect(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}

}  // namespace kit
