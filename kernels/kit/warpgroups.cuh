// Products of whole warpgroups (wgmma) and what feeds them: tensor copies, registers that warpgroups exchange; compute
// capability 9.0 alone (PTX ISA, "Asynchronous warpgroup level matrix instructions"). Factors lie in slabs of 64 columns,
// rows of 128 bytes whose chunks of 16 bytes are exchanged by the row's last three bits: the 128-byte swizzle.

#include "kit/copies.cuh"
#include "kit/fragments.cuh"

namespace kit {

// The box of a described matrix whose first element is (row, col) to shared memory; `barrier` counts its bytes.
__device__ __forceinline__ void copy_box(unsigned to, const void* map, int row, int col, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];\n"
                 ::"r"(to), "l"(map), "r"(col), "r"(row), "r"(barrier) : "memory");
}

// Describes a row-major matrix of 16-bit floats in 128 bytes of shared memory that are zero: boxes of `high` rows and 64
// columns, zeros beyond the matrix. (PTX ISA, "tensormap.replace"; encodings of its "Tensor-map fields".)
template <class T> __device__ __forceinline__ void describe(unsigned map, const T* matrix, int rows, int cols, int high) {
    asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;\n" ::"r"(map), "l"(matrix) : "memory");
    asm volatile("tensormap.replace.tile.rank.shared::cta.b1024.b32 [%0], 1;\n" ::"r"(map) : "memory");
#define KIT_SET(field, type, at, value, kind) \
    asm volatile("tensormap.replace.tile." field ".shared::cta.b1024." type " [%0], " at ", %1;\n" \
                 ::"r"(map), kind(value) : "memory")
    KIT_SET("box_dim", "b32", "0", 64, "r");
    KIT_SET("box_dim", "b32", "1", high, "r");
    KIT_SET("global_dim", "b32", "0", cols, "r");
    KIT_SET("global_dim", "b32", "1", rows, "r");
    KIT_SET("global_stride", "b64", "0", (long long)cols * 2, "l");
    KIT_SET("element_stride", "b32", "0", 1, "r");
    KIT_SET("element_stride", "b32", "1", 1, "r");
#undef KIT_SET
#define KIT_SET(field, code) \
    asm volatile("tensormap.replace.tile." field ".shared::cta.b1024.b32 [%0], " code ";\n" ::"r"(map) : "memory")
    if constexpr (Sixteen<T>::BFLOAT) KIT_SET("elemtype", "0xa");
    else KIT_SET("elemtype", "0x6");
    KIT_SET("interleave_layout", "0x0");
    KIT_SET("swizzle_mode", "0x3");
    KIT_SET("fill_mode", "0x0");
#undef KIT_SET
}
// What was described, in global memory, for copies that a thread starts which has acquired it.
__device__ __forceinline__ void publish(void* to, unsigned map) {
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;\n"
                 ::"l"(to), "r"(map) : "memory");
}
__device__ __forceinline__ void acquire(const void* map) {
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;\n" ::"l"(map) : "memory");
}

// Registers of each thread of a warpgroup from now on: fewer, which others may take, or more. A multiple of 8.
template <int COUNT> __device__ __forceinline__ void keep_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(COUNT));
}

// A matrix in shared memory as the product wants it described: address and two strides in units of 16 bytes, 128-byte
// swizzle. For A (its depth lies in a row) `stride` is from 8 rows to the next 8; for B (its columns lie in a row) `stride`
// is from 8 rows in depth to the next 8, and `leading` from 64 columns to the next 64.
__device__ __forceinline__ unsigned long long described(unsigned address, int leading, int stride) {
    return (unsigned long long)((address & 0x3ffff) >> 4) | (unsigned long long)(leading >> 4) << 16
        | (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}

// Products are started between begin_products and close_products; wait_products<N> returns when at most N groups of them are
// under way.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void close_products() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(LEFT) : "memory");
}

#define KIT_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define KIT_16(d, i) KIT_4(d, i), KIT_4(d, i + 4), KIT_4(d, i + 8), KIT_4(d, i + 12)
#define KIT_64(d, i) KIT_16(d, i), KIT_16(d, i + 16), KIT_16(d, i + 32), KIT_16(d, i + 48)
#define KIT_TO_31 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
                  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KIT_TO_63 KIT_TO_31 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
                  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define KIT_TO_127 KIT_TO_63 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
                   "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
                   "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
                   "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define KIT_PRODUCT(N, TYPE, PLACES, FACTORS, ...) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " " PLACES "}, " FACTORS ", 1, 1, 1, 0, 1;\n" \
                 : __VA_ARGS__ : "l"(a), "l"(b))
#define KIT_PRODUCTS(TYPE) \
    if constexpr (VALUES == 32) KIT_PRODUCT(64, TYPE, KIT_TO_31, "%32, %33", KIT_16(d, 0), KIT_16(d, 16)); \
    else if constexpr (VALUES == 64) KIT_PRODUCT(128, TYPE, KIT_TO_63, "%64, %65", KIT_64(d, 0)); \
    else KIT_PRODUCT(256, TYPE, KIT_TO_127, "%128, %129", KIT_64(d, 0), KIT_64(d, 64))
// d += A B, 64 x 2 VALUES (of 32, 64, 128) in a warpgroup, 16 deep; the last two operands say that B's columns lie in a row.
template <class T, int VALUES>
__device__ __forceinline__ void multiply(float (&d)[VALUES], unsigned long long a, unsigned long long b) {
    if constexpr (Sixteen<T>::BFLOAT) { KIT_PRODUCTS("bf16"); }
    else { KIT_PRODUCTS("f16"); }
}
#undef KIT_4
#undef KIT_16
#undef KIT_64
#undef KIT_TO_31
#undef KIT_TO_63
#undef KIT_TO_127
#undef KIT_PRODUCT
#undef KIT_PRODUCTS

template <class T> __device__ __forceinline__ unsigned packed(float x, float y) {
    alignas(4) T pair[2] = {T(x), T(y)};
    return *reinterpret_cast<const unsigned*>(pair);
}

// 32 columns of one row, of which each of four neighbouring threads has two of every eight: each stores 16 bytes.
template <class T> __device__ __forceinline__ void store_together(T* __restrict__ row, int col, int n, unsigned (&x)[4]) {
    const int lane = threadIdx.x % 4;
    const bool odd = lane & 1, upper = lane & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const unsigned got = __shfl_xor_sync(0xffffffff, odd ? x[i] : x[i + 1], 1);
        if (odd) x[i] = got; else x[i + 1] = got;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const unsigned got = __shfl_xor_sync(0xffffffff, upper ? x[i] : x[i + 2], 2);
        if (upper) x[i] = got; else x[i + 2] = got;
    }
    if (row != nullptr && col + lane * 8 < n)
        *reinterpret_cast<uint4*>(row + col + lane * 8) = make_uint4(x[0], x[1], x[2], x[3]);
}

}  // namespace kit
