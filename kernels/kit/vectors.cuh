// Vectors of elements, and the ways through the caches.

namespace kit {

// How data pass the caches: PLAIN, as they come; STREAMED, evicted first; PAST_L1, loads that skip L1, where little is read
// twice, and stores that are evicted first; KEPT, as they come, in accesses that the compiler may choose.
enum Cache { PLAIN, STREAMED, PAST_L1, KEPT };

template <int BYTES> struct Raw;
template <> struct Raw<16> { using type = uint4; };
template <> struct Raw<8> { using type = uint2; };
template <> struct Raw<4> { using type = unsigned int; };
template <> struct Raw<2> { using type = unsigned short; };
template <> struct Raw<1> { using type = unsigned char; };

// V elements of T, a power of two; they move in pieces of at most 16 bytes, to which they are aligned.
template <class T, int V> struct Vector {
    // Constants that are no variables of the module, as static members would be.
    enum { SIZE = V, BYTES = V * sizeof(T), PIECE = BYTES < 16 ? BYTES : 16, PIECES = BYTES / PIECE };
    using Piece = typename Raw<PIECE>::type;
    alignas(PIECE) T value[V];
};

// One access of 2 to 16 bytes. PAST_L1 is not the read-only path: a kernel may write what it reads.
#define KIT_PAST_L1(TYPE, WORDS, OUT, ...) \
    __device__ __forceinline__ TYPE past_l1(const TYPE* from) { \
        TYPE x; \
        asm volatile("ld.global.L1::no_allocate." WORDS ", [%" OUT "];" : __VA_ARGS__ : "l"(from)); \
        return x; \
    }
KIT_PAST_L1(uint4, "v4.u32 {%0, %1, %2, %3}", "4", "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w))
KIT_PAST_L1(uint2, "v2.u32 {%0, %1}", "2", "=r"(x.x), "=r"(x.y))
KIT_PAST_L1(unsigned int, "u32 %0", "1", "=r"(x))
KIT_PAST_L1(unsigned short, "u16 %0", "1", "=h"(x))
#undef KIT_PAST_L1

template <int CACHE, class R> __device__ __forceinline__ R fetch(const R* from) {
    if constexpr (CACHE == PAST_L1) return past_l1(from);
    else if constexpr (CACHE == STREAMED) return __ldcs(from);
    else return *from;
}
template <int CACHE, class R> __device__ __forceinline__ void put(R* to, R value) {
    if constexpr (CACHE == PLAIN) *to = value;
    else __stcs(to, value);
}

// A vector from and to an address that is a multiple of its PIECE.
template <int V, int CACHE = PLAIN, class T> __device__ __forceinline__ Vector<T, V> load(const T* from) {
    if constexpr (CACHE == KEPT) return *reinterpret_cast<const Vector<T, V>*>(from);
    using Piece = typename Vector<T, V>::Piece;
    Vector<T, V> x;
#pragma unroll
    for (int i = 0; i < Vector<T, V>::PIECES; ++i)
        reinterpret_cast<Piece*>(x.value)[i] = fetch<CACHE>(reinterpret_cast<const Piece*>(from) + i);
    return x;
}
// The same into a variable, without a copy of it, which decides when the compiler moves the accesses.
template <class T, int V> __device__ __forceinline__ void load_into(Vector<T, V>& x, const T* from) {
    using Piece = typename Vector<T, V>::Piece;
#pragma unroll
    for (int i = 0; i < Vector<T, V>::PIECES; ++i)
        reinterpret_cast<Piece*>(x.value)[i] = reinterpret_cast<const Piece*>(from)[i];
}
template <int CACHE = PLAIN, class T, int V> __device__ __forceinline__ void store(T* to, const Vector<T, V>& x) {
    using Piece = typename Vector<T, V>::Piece;
    if constexpr (CACHE == KEPT) *reinterpret_cast<Vector<T, V>*>(to) = x;
    else
#pragma unroll
        for (int i = 0; i < Vector<T, V>::PIECES; ++i)
            put<CACHE>(reinterpret_cast<Piece*>(to) + i, reinterpret_cast<const Piece*>(x.value)[i]);
}

// Whether vectors of V elements of T can begin at each of these addresses: the same answer in every thread.
template <class T, int V, class... Arrays> __device__ __forceinline__ bool on_vectors(const Arrays*... arrays) {
    return (reinterpret_cast<unsigned long long>(arrays) | ...) % Vector<T, V>::PIECE == 0;
}
// Whether two arrays begin at the same place between two such vectors.
template <class T, int V> __device__ __forceinline__ bool alike(const T* a, const T* b) {
    return (reinterpret_cast<unsigned long long>(a) ^ reinterpret_cast<unsigned long long>(b)) % Vector<T, V>::PIECE == 0;
}
// How many elements lie before the next vector.
template <int V, class T> __device__ __forceinline__ int elements_to_vector(const T* from) {
    return -(reinterpret_cast<unsigned long long>(from) / sizeof(T)) % (Vector<T, V>::PIECE / sizeof(T));
}

}  // namespace kit
