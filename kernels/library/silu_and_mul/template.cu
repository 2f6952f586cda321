// A block works on tiles of BLOCK_Y rows by BLOCK_X * VEC * UNROLL columns. A thread has UNROLL vectors of both halves
// in flight before it computes. Rows that no vector divides take the same tiles element by element.

template <int BYTES> struct Raw;
template <> struct Raw<16> { using type = uint4; };
template <> struct Raw<8> { using type = uint2; };
template <> struct Raw<4> { using type = unsigned int; };
template <> struct Raw<2> { using type = unsigned short; };

// V elements of T, moved in pieces of at most 16 bytes.
template <int V> struct Pack {
    static constexpr int BYTES = V * sizeof(T);
    static constexpr int PIECE = BYTES < 16 ? BYTES : 16;
    using Piece = typename Raw<PIECE>::type;
    alignas(PIECE) T value[V];
};

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ void from_float(float& to, float x) { to = x; }
#if T_IS_FLOAT16
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ void from_float(__half& to, float x) { to = __float2half_rn(x); }
#elif T_IS_BFLOAT16
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void from_float(__nv_bfloat16& to, float x) { to = __float2bfloat16_rn(x); }
#endif

#if CACHE == 2
// Read-only and not kept in L1, where nothing is read twice.
__device__ __forceinline__ uint4 fetch(const uint4* from) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from));
    return x;
}
__device__ __forceinline__ uint2 fetch(const uint2* from) {
    uint2 x;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from));
    return x;
}
__device__ __forceinline__ unsigned int fetch(const unsigned int* from) {
    unsigned int x;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(x) : "l"(from));
    return x;
}
__device__ __forceinline__ unsigned short fetch(const unsigned short* from) {
    unsigned short x;
    asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(x) : "l"(from));
    return x;
}
#elif CACHE == 1
template <typename R> __device__ __forceinline__ R fetch(const R* from) { return __ldcs(from); }
#else
template <typename R> __device__ __forceinline__ R fetch(const R* from) { return *from; }
#endif

template <int V> __device__ __forceinline__ Pack<V> load(const T* from) {
    using P = Pack<V>;
    P pack;
#pragma unroll
    for (int i = 0; i < P::BYTES / P::PIECE; ++i)
        reinterpret_cast<typename P::Piece*>(pack.value)[i] = fetch(reinterpret_cast<const typename P::Piece*>(from) + i);
    return pack;
}

template <int V> __device__ __forceinline__ void store(T* to, const Pack<V>& pack) {
    using P = Pack<V>;
#pragma unroll
    for (int i = 0; i < P::BYTES / P::PIECE; ++i) {
        const auto piece = reinterpret_cast<const typename P::Piece*>(pack.value)[i];
#if CACHE == 0
        reinterpret_cast<typename P::Piece*>(to)[i] = piece;
#else
        __stcs(reinterpret_cast<typename P::Piece*>(to) + i, piece);
#endif
    }
}

__device__ __forceinline__ float silu(float x) {
#if FAST_EXP
    return __fdividef(x, 1.0f + __expf(-x));
#else
    return x / (1.0f + expf(-x));
#endif
}

// UNROLL vectors of V elements, BLOCK_X vectors apart. All loads are issued before the first is used.
template <int V>
__device__ __forceinline__ void columns(const T* __restrict__ gate, const T* __restrict__ up, T* __restrict__ out,
                                        int first, int d) {
    Pack<V> a[UNROLL], b[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const int col = first + u * BLOCK_X * V;
        if (col < d) {
            a[u] = load<V>(gate + col);
            b[u] = load<V>(up + col);
        }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const int col = first + u * BLOCK_X * V;
        if (col < d) {
            Pack<V> c;
#pragma unroll
            for (int i = 0; i < V; ++i)
                from_float(c.value[i], silu(to_float(a[u].value[i])) * to_float(b[u].value[i]));
            store<V>(out + col, c);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y)
silu_and_mul(const T* __restrict__ input, T* __restrict__ out, int n, int d) {
    constexpr int SPAN = BLOCK_X * VEC * UNROLL;
    const unsigned across = (d + SPAN - 1) / SPAN;
    const unsigned tiles = across * ((n + BLOCK_Y - 1) / BLOCK_Y);
    // The same answer in every thread: vectors need rows that start and end on one.
    const unsigned long long addresses = reinterpret_cast<unsigned long long>(input) | reinterpret_cast<unsigned long long>(out);
    const bool vectors = d % VEC == 0 && addresses % Pack<VEC>::PIECE == 0;

    unsigned tile = blockIdx.x;
    do {
        const int row = tile / across * BLOCK_Y + threadIdx.y;
        const int start = tile % across * SPAN;
        if (row < n) {
            const T* gate = input + row * 2ll * d;
            T* to = out + (long long)row * d;
            if (vectors) {
                columns<VEC>(gate, gate + d, to, start + threadIdx.x * VEC, d);
            } else {
                for (int part = 0; part < VEC; ++part)
                    columns<1>(gate, gate + d, to, start + part * BLOCK_X * UNROLL + threadIdx.x, d);
            }
        }
        tile += gridDim.x;
    } while (GRID_CAP > 0 && tile < tiles);  // without a cap the grid has a block for every tile
}
