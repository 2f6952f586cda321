// Building blocks of the templates that rules make. Each begins with a line `//: NAME` and the blocks that it needs.
//: elements
namespace tunesmith {
// N neighbouring elements, which move as one access.
template <class T, int N> struct alignas(N * sizeof(T)) Elements { T at[N]; };
}
//: hints
namespace tunesmith {
template <int BYTES> struct Piece;
template <> struct Piece<1> { using type = unsigned char; };
template <> struct Piece<2> { using type = unsigned short; };
template <> struct Piece<4> { using type = unsigned int; };
template <> struct Piece<8> { using type = uint2; };
template <> struct Piece<16> { using type = uint4; };
// HINT 1: through the read-only cache; 2: as data needed once.
template <int HINT, class V> __device__ __forceinline__ V load(const V* from) {
    if constexpr (HINT == 0) {
        return *from;
    } else {
        using P = typename Piece<sizeof(V)>::type;
        P raw;
        if constexpr (HINT == 1) raw = __ldg(reinterpret_cast<const P*>(from));
        else raw = __ldcs(reinterpret_cast<const P*>(from));
        return reinterpret_cast<V&>(raw);
    }
}
// HINT 1: as data that nobody needs again soon.
template <int HINT, class V, class W> __device__ __forceinline__ void store(V* to, const W& given) {
    V value = given;
    if constexpr (HINT == 0) {
        *to = value;
    } else {
        using P = typename Piece<sizeof(V)>::type;
        __stcs(reinterpret_cast<P*>(to), reinterpret_cast<P&>(value));
    }
}
}
//: vectors elements hints
namespace tunesmith {
template <int N> __device__ __forceinline__ bool aligned() { return true; }
template <int N, class T, class... More> __device__ __forceinline__ bool aligned(const T* p, const More*... more) {
    return reinterpret_cast<unsigned long long>(p) % sizeof(Elements<T, N>) == 0 && aligned<N>(more...);
}
// The elements of `from` at `first` and behind, as far as they are below `limit`: as one access where they are `whole`.
template <int HINT, class T, int N, class I>
__device__ __forceinline__ void fetch(Elements<T, N>& to, const T* from, I first, long long limit, bool whole) {
    if (whole) {
        to = load<HINT>(reinterpret_cast<const Elements<T, N>*>(from + first));
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (first + i < limit) to.at[i] = from[first + i];
    }
}
template <int HINT, class T, int N, class I>
__device__ __forceinline__ void put(const Elements<T, N>& from, T* to, I first, long long limit, bool whole) {
    if (whole) {
        store<HINT>(reinterpret_cast<Elements<T, N>*>(to + first), from);
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (first + i < limit) to[first + i] = from.at[i];
    }
}
}
//: rows vectors
namespace tunesmith {
// An array along a row. row: its element at 0; kept: vectors that the thread keeps, where KEPT is 1 (the first loop over the
// row) or 2 (a later one); LOADS, STORES: hints.
template <class T, int N, bool READ, bool WRITTEN, int KEPT, int LOADS, int STORES> struct Along {
    T* row;
    Elements<T, N>* kept;
    Elements<T, N> own;
    template <bool HELD> __device__ __forceinline__ Elements<T, N>& of(int turn) {
        if constexpr (KEPT > 0 && HELD) return kept[turn];
        else return own;
    }
    template <bool HELD, class I> __device__ __forceinline__ void get(I unit, int turn) {
        if constexpr (READ && !(KEPT == 2 && HELD))
            of<HELD>(turn) = load<LOADS>(reinterpret_cast<const Elements<T, N>*>(row) + unit);
    }
    template <bool HELD, class I> __device__ __forceinline__ void put(I unit, int turn) {
        if constexpr (WRITTEN) store<STORES>(reinterpret_cast<Elements<T, N>*>(row) + unit, of<HELD>(turn));
    }
};
template <int N, bool HELD, class I, class Body, class... Arrays>
__device__ __forceinline__ void turn(I unit, int number, Body& body, Arrays&... arrays) {
    (arrays.template get<HELD>(unit, number), ...);
#pragma unroll
    for (int k = 0; k < N; ++k) body((I)(unit * N + k), arrays.template of<HELD>(number).at[k]...);
    (arrays.template put<HELD>(unit, number), ...);
}
// body(i, element of each array) for the places `first`, `first + step` and so on below `bound`: of `units` vectors of N
// elements by their numbers, the first KEEP of them kept, and of what fills no vector.
template <int N, int KEEP, class I, class Body, class... Arrays>
__device__ __forceinline__ void row(I first, I step, I units, I bound, Body body, Arrays... arrays) {
#pragma unroll
    for (int k = 0; k < KEEP; ++k)
        if (first + k * step < units) turn<N, true>((I)(first + k * step), k, body, arrays...);
#ifdef TUNESMITH_UNROLL
#pragma unroll TUNESMITH_UNROLL
#endif
    for (I unit = first + KEEP * step; unit < units; unit += step) turn<N, false>(unit, 0, body, arrays...);
    for (I i = first + units * N; i < bound; i += step) body(i, arrays.row[i]...);
}
}
