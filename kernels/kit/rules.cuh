// Building blocks of the templates that rules make, ahead of which types and parameters of a task are macros: names of
// templates end in an underscore. Each begins with a line `//: NAME` and the blocks that it needs.
//: elements
namespace tunesmith {
// count_ neighbouring elements, which move as one access.
template <class type_, int count_> struct alignas(count_ * sizeof(type_)) Elements { type_ at[count_]; };
}
//: hints
namespace tunesmith {
template <int bytes_> struct Piece;
template <> struct Piece<1> { using type = unsigned char; };
template <> struct Piece<2> { using type = unsigned short; };
template <> struct Piece<4> { using type = unsigned int; };
template <> struct Piece<8> { using type = uint2; };
template <> struct Piece<16> { using type = uint4; };
// hint_ 1: through the read-only cache; 2: as data needed once.
template <int hint_, class value_> __device__ __forceinline__ value_ load(const value_* from) {
    if constexpr (hint_ == 0) {
        return *from;
    } else {
        using piece_ = typename Piece<sizeof(value_)>::type;
        piece_ raw;
        if constexpr (hint_ == 1) raw = __ldg(reinterpret_cast<const piece_*>(from));
        else raw = __ldcs(reinterpret_cast<const piece_*>(from));
        return reinterpret_cast<value_&>(raw);
    }
}
// hint_ 1: as data that nobody needs again soon.
template <int hint_, class value_, class given_> __device__ __forceinline__ void store(value_* to, const given_& given) {
    value_ value = given;
    if constexpr (hint_ == 0) {
        *to = value;
    } else {
        using piece_ = typename Piece<sizeof(value_)>::type;
        __stcs(reinterpret_cast<piece_*>(to), reinterpret_cast<piece_&>(value));
    }
}
}
//: vectors elements hints
namespace tunesmith {
template <int count_> __device__ __forceinline__ bool aligned() { return true; }
template <int count_, class type_, class... more_> __device__ __forceinline__ bool aligned(const type_* p, const more_*... more) {
    return reinterpret_cast<unsigned long long>(p) % sizeof(Elements<type_, count_>) == 0 && aligned<count_>(more...);
}
// The elements of `from` at `first` and behind, as far as they are below `limit`: as one access where they are `whole`.
template <int hint_, class type_, int count_, class index_>
__device__ __forceinline__ void fetch(Elements<type_, count_>& to, const type_* from, index_ first, long long limit, bool whole) {
    if (whole) {
        to = load<hint_>(reinterpret_cast<const Elements<type_, count_>*>(from + first));
    } else {
#pragma unroll
        for (int i = 0; i < count_; ++i)
            if (first + i < limit) to.at[i] = from[first + i];
    }
}
template <int hint_, class type_, int count_, class index_>
__device__ __forceinline__ void put(const Elements<type_, count_>& from, type_* to, index_ first, long long limit, bool whole) {
    if (whole) {
        store<hint_>(reinterpret_cast<Elements<type_, count_>*>(to + first), from);
    } else {
#pragma unroll
        for (int i = 0; i < count_; ++i)
            if (first + i < limit) to[first + i] = from.at[i];
    }
}
}
//: rows vectors
namespace tunesmith {
// An array along a row. row: its element at 0; kept: vectors that the thread keeps, where kept_ is 1 (the first loop over the
// row) or 2 (a later one); loads_, stores_: hints.
template <class type_, int count_, bool read_, bool written_, int kept_, int loads_, int stores_> struct Along {
    type_* row;
    Elements<type_, count_>* kept;
    Elements<type_, count_> own;
    template <bool held_> __device__ __forceinline__ Elements<type_, count_>& of(int turn) {
        if constexpr (kept_ > 0 && held_) return kept[turn];
        else return own;
    }
    template <bool held_, class index_> __device__ __forceinline__ void get(index_ unit, int turn) {
        if constexpr (read_ && !(kept_ == 2 && held_))
            of<held_>(turn) = load<loads_>(reinterpret_cast<const Elements<type_, count_>*>(row) + unit);
    }
    template <bool held_, class index_> __device__ __forceinline__ void put(index_ unit, int turn) {
        if constexpr (written_) store<stores_>(reinterpret_cast<Elements<type_, count_>*>(row) + unit, of<held_>(turn));
    }
};
template <int count_, bool held_, class index_, class body_, class... arrays_>
__device__ __forceinline__ void turn(index_ unit, int number, body_& body, arrays_&... arrays) {
    (arrays.template get<held_>(unit, number), ...);
#pragma unroll
    for (int k = 0; k < count_; ++k) body((index_)(unit * count_ + k), arrays.template of<held_>(number).at[k]...);
    (arrays.template put<held_>(unit, number), ...);
}
// body(i, element of each array) for the places `first`, `first + step` and so on below `bound`: of `units` vectors of count_
// elements by their numbers, the first keep_ of them kept, and of what fills no vector.
template <int count_, int keep_, class index_, class body_, class... arrays_>
__device__ __forceinline__ void row(index_ first, index_ step, index_ units, index_ bound, body_ body, arrays_... arrays) {
#pragma unroll
    for (int k = 0; k < keep_; ++k)
        if (first + k * step < units) turn<count_, true>((index_)(first + k * step), k, body, arrays...);
#ifdef TUNESMITH_UNROLL
#pragma unroll TUNESMITH_UNROLL
#endif
    for (index_ unit = first + keep_ * step; unit < units; unit += step) turn<count_, false>(unit, 0, body, arrays...);
    for (index_ i = first + units * count_; i < bound; i += step) body(i, arrays.row[i]...);
}
}
