// Vectors of T for memory-bound kernels: moved in pieces of at most 16 bytes, past or through the caches as CACHE says
// (0: plain; 1: streaming, evict first; 2: loads that skip L1, streaming stores).

template <int BYTES> struct Raw;
template <> struct Raw<16> { using type = uint4; };
template <> struct Raw<8> { using type = uint2; };
template <> struct Raw<4> { using type = unsigned int; };
template <> struct Raw<2> { using type = unsigned short; };

// V elements of T, moved in pieces of at most 16 bytes.
template <int V> struct Pack {
    enum { BYTES = V * sizeof(T), PIECE = BYTES < 16 ? BYTES : 16 };  // static members would be variables of the module
    using Piece = typename Raw<PIECE>::type;
    alignas(PIECE) T value[V];
};

// How many elements lie before the next vector of V: of a row that begins between two.
template <int V> __device__ __forceinline__ int elements_to_vector(const T* from) {
    return -(reinterpret_cast<unsigned long long>(from) / sizeof(T)) % (Pack<V>::PIECE / sizeof(T));
}

#if CACHE == 2
// Not kept in L1, where little or nothing is read twice. Not the read-only path, as some kernels write what they read.
__device__ __forceinline__ uint4 fetch(const uint4* from) {
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from));
    return x;
}
__device__ __forceinline__ uint2 fetch(const uint2* from) {
    uint2 x;
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from));
    return x;
}
__device__ __forceinline__ unsigned int fetch(const unsigned int* from) {
    unsigned int x;
    asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(x) : "l"(from));
    return x;
}
__device__ __forceinline__ unsigned short fetch(const unsigned short* from) {
    unsigned short x;
    asm volatile("ld.global.L1::no_allocate.u16 %0, [%1];" : "=h"(x) : "l"(from));
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
