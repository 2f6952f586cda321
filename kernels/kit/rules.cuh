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
//: lanes
namespace tunesmith {
// What neighbouring lanes have, for all of them.
template <int lanes_, class type_, class join_>
__device__ __forceinline__ type_ joined(unsigned int mask, type_ value, join_ join) {
#pragma unroll
    for (int by = lanes_ / 2; by > 0; by >>= 1) value = join(value, __shfl_xor_sync(mask, value, by));
    return value;
}
}
//: shuffles
namespace tunesmith {
// Puts what all threads of a block have in `of` together, into its first element. As many loads as warps, which are a power
// of two, so that every lane has one and they take turns.
template <int threads_, class type_, class join_> __device__ __forceinline__ void combine(type_* of, join_ join) {
    const unsigned int thread = threadIdx.x;
    type_ value = of[thread];
#pragma unroll
    for (int by = 16; by > 0; by >>= 1) value = join(value, __shfl_xor_sync(0xffffffffu, value, by));
    __syncthreads();
    if (thread % 32 == 0) of[thread / 32] = value;
    __syncthreads();
    value = of[thread % (threads_ / 32)];
#pragma unroll
    for (int by = threads_ / 64; by > 0; by >>= 1) value = join(value, __shfl_xor_sync(0xffffffffu, value, by));
    __syncthreads();
    if (thread == 0) of[0] = value;
    __syncthreads();
}
}
//: transposed
namespace tunesmith {
// A tile of side_ x side_ elements by blocks of side_ x rows_ threads: get(x, y) along x, put(x, y, element) along y. Rows of
// the tile have an element more than they need, so that a column lies in different banks.
template <int side_, int rows_, class type_, class get_, class put_>
__device__ __forceinline__ void transpose(type_ (&tile)[side_][side_ + 1], long long wide, long long high, get_ get, put_ put) {
    const long long x = (long long)blockIdx.x * side_, y = (long long)blockIdx.y * side_;
#pragma unroll
    for (unsigned int step = threadIdx.y; step < side_; step += rows_)
        if (x + threadIdx.x < wide && y + step < high) tile[step][threadIdx.x] = get(x + threadIdx.x, y + step);
    __syncthreads();
#pragma unroll
    for (unsigned int step = threadIdx.y; step < side_; step += rows_)
        if (x + step < wide && y + threadIdx.x < high) put(x + step, y + threadIdx.x, tile[threadIdx.x][step]);
}
}
//: permuted hints
// A tile of side x side elements in shared memory, whose rows have an element more, so that a column lies in different banks.
#define TUNESMITH_TILE(type, name, side) __shared__ type name[side][(side) + 1]
#define TUNESMITH_MEET __syncthreads()
#define TUNESMITH_EACH_TILE(number, count) for (unsigned int number = blockIdx.x; number < (count); number += gridDim.x)
// Goes over the places of a tile by blocks of side x rows threads, which are neighbours along `inner`.
#define TUNESMITH_OVER_TILE(side, rows, inner, outer) \
    _Pragma("unroll") for (long long inner = first_##inner + threadIdx.x, outer = first_##outer + threadIdx.y, \
                           end_of_tile = outer + (side); outer < end_of_tile; outer += (rows))
//: products
namespace tunesmith {
// Elements between the rows of a tile: they begin at a vector still, and in other banks.
template <class type_, int side_, int depth_> struct Part { alignas(16) type_ at[depth_][side_ + 4]; };
// get(along, step, element) for the elements of a part, by threads that are neighbours where elements are.
template <int threads_, bool by_steps_, class type_, int side_, int depth_, class get_>
__device__ __forceinline__ void stage(Part<type_, side_, depth_>& part, get_ get) {
    constexpr unsigned int inner = by_steps_ ? depth_ : side_;
#pragma unroll 4
    for (unsigned int at = threadIdx.x; at < side_ * depth_; at += threads_) {
        const unsigned int along = by_steps_ ? at / inner : at % inner, step = by_steps_ ? at % inner : at / inner;
        get(along, step, part.at[step][along]);
    }
}
template <int rows_, int columns_, class body_> __device__ __forceinline__ void each(body_ body) {
#pragma unroll
    for (int row = 0; row < rows_; ++row)
#pragma unroll
        for (int column = 0; column < columns_; ++column) body(row, column);
}
// add(row, column, step, of the row, of the column) for the results of a thread and the steps from first to bound. down,
// across: the thread's place in the tile.
template <int rows_, int columns_, bool down_by_steps_, bool across_by_steps_, class down_, class across_, int side_, int depth_,
          class get_down_, class get_across_, class add_>
__device__ __forceinline__ void multiply(Part<down_, side_, depth_>& downs, Part<across_, side_, depth_>& acrosses, int down,
                                         int across, long long first, long long bound, get_down_ get_down,
                                         get_across_ get_across, add_ add) {
    constexpr int threads = (side_ / rows_) * (side_ / columns_);
    for (long long from = first; from < bound; from += depth_) {
        stage<threads, down_by_steps_>(downs, [&](unsigned int along, unsigned int step, down_& to) {
            if (from + step < bound) get_down(along, from + step, to);
        });
        stage<threads, across_by_steps_>(acrosses, [&](unsigned int along, unsigned int step, across_& to) {
            if (from + step < bound) get_across(along, from + step, to);
        });
        __syncthreads();
        const auto turn = [&](int step) {
            down_ of_rows[rows_];
            across_ of_columns[columns_];
#pragma unroll
            for (int row = 0; row < rows_; ++row) of_rows[row] = downs.at[step][down * rows_ + row];
#pragma unroll
            for (int column = 0; column < columns_; ++column)
                of_columns[column] = acrosses.at[step][across * columns_ + column];
            each<rows_, columns_>(
                [&](int row, int column) { add(row, column, from + step, of_rows[row], of_columns[column]); });
        };
        if (bound - from >= depth_) {
#pragma unroll
            for (int step = 0; step < depth_; ++step) turn(step);
        } else {
            for (int step = 0; step < bound - from; ++step) turn(step);
        }
        __syncthreads();
    }
}
}
//: slide
// What a thread keeps of `array` while it goes on: HIGH rows of WIDE elements, the first from `from` on and the next `apart`
// further, as far as the array's `length` elements go. All are read at the first step, later only the last row.
#define TUNESMITH_SLIDE(window, WIDE, HIGH, first, array, length, from, apart) \
    _Pragma("unroll") for (int slide_row = 0; slide_row < (HIGH); ++slide_row) { \
        _Pragma("unroll") for (int slide_column = 0; slide_column < (WIDE); ++slide_column) { \
            const long long slide_from = (from) + slide_row * (apart) + slide_column; \
            if (!(first) && slide_row < (HIGH) - 1) window[slide_column][slide_row] = window[slide_column][slide_row + 1]; \
            else if (slide_from >= 0 && slide_from < (length)) window[slide_column][slide_row] = (array)[slide_from]; \
        } \
    }
