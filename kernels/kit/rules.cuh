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
// The element `i` behind a place: a pointer, or a function of i where the distance is another.
template <class type_, class index_> __device__ __forceinline__ type_* element(type_* place, index_ i) { return place + i; }
template <class place_, class index_>
__device__ __forceinline__ auto element(const place_& place, index_ i) -> decltype(place(i)) { return place(i); }
// The records of size_ elements at `first` and so many `apart`, as far as they are below `limit`: as one access where they are
// `whole`.
template <int hint_, int size_, class type_, int count_, class place_, class index_>
__device__ __forceinline__ void fetch(Elements<type_, count_>& to, place_ from, index_ first, index_ apart, long long limit, bool whole) {
    if (whole) {
        to = load<hint_>(reinterpret_cast<const Elements<type_, count_>*>(element(from, first * size_)));
    } else {
#pragma unroll
        for (int i = 0; i < count_; ++i)
            if (first + i / size_ * apart < limit) to.at[i] = *element(from, (first + i / size_ * apart) * size_ + i % size_);
    }
}
template <int hint_, int size_, class type_, int count_, class place_, class index_>
__device__ __forceinline__ void put(const Elements<type_, count_>& from, place_ to, index_ first, index_ apart, long long limit, bool whole) {
    if (whole) {
        store<hint_>(reinterpret_cast<Elements<type_, count_>*>(element(to, first * size_)), from);
    } else {
#pragma unroll
        for (int i = 0; i < count_; ++i)
            if (first + i / size_ * apart < limit) *element(to, (first + i / size_ * apart) * size_ + i % size_) = from.at[i];
    }
}
}
//: turns
namespace tunesmith {
// turn(i) from i on by `step` below `bound`. Where i has no sign, so that it may wrap around, compilers test it between the
// rounds that they unroll, and load for one round at a time.
template <class index_, class bound_, class step_, class turn_>
__device__ __forceinline__ void turns(index_ i, bound_ bound, step_ step, turn_ turn) {
#if defined(TUNESMITH_UNROLL) && TUNESMITH_UNROLL > 1
    if constexpr (index_(-1) > index_(0)) {
        const unsigned long long ahead = (TUNESMITH_UNROLL - 1) * (unsigned long long)step;
        while (i < bound && bound - i > ahead)
#pragma unroll
            for (int k = 0; k < TUNESMITH_UNROLL; ++k, i += step) turn(i);
#pragma unroll 1
        for (; i < bound; i += step) turn(i);
        return;
    }
#endif
#ifdef TUNESMITH_UNROLL
#pragma unroll TUNESMITH_UNROLL
#endif
    for (; i < bound; i += step) turn(i);
}
}
//: rows vectors turns
namespace tunesmith {
template <int count_, class vector_, class type_, class index_> __device__ __forceinline__ vector_* whole(type_* place, index_ unit) {
    return reinterpret_cast<vector_*>(place) + unit;
}
template <int count_, class vector_, class place_, class index_>
__device__ __forceinline__ auto whole(const place_& place, index_ unit) -> decltype((vector_*)place(unit)) {
    return reinterpret_cast<vector_*>(place(unit * count_));
}
// Records of size_ elements of an array along a row. place: see `element`; kept: vectors that the thread keeps, where kept_ is 1
// (the first loop over the row) or 2 (a later one); loads_, stores_: hints.
template <class type_, int count_, int size_, bool read_, bool written_, int kept_, int loads_, int stores_, class place_> struct Along {
    using vector_ = Elements<type_, count_ * size_>;
    enum { SIZE = size_ };
    place_ place;
    vector_* kept;
    vector_ own;
    template <bool held_> __device__ __forceinline__ vector_& of(int turn) {
        if constexpr (kept_ > 0 && held_) return kept[turn];
        else return own;
    }
    template <bool held_, class index_> __device__ __forceinline__ void get(index_ unit, int turn) {
        if constexpr (read_ && !(kept_ == 2 && held_)) of<held_>(turn) = load<loads_>(whole<count_, vector_>(place, unit));
    }
    template <bool held_, class index_> __device__ __forceinline__ void put(index_ unit, int turn) {
        if constexpr (written_) store<stores_>(whole<count_, vector_>(place, unit), of<held_>(turn));
    }
};
template <int count_, bool held_, class index_, class body_, class... arrays_>
__device__ __forceinline__ void turn(index_ unit, int number, body_& body, arrays_&... arrays) {
    (arrays.template get<held_>(unit, number), ...);
#pragma unroll
    for (int k = 0; k < count_; ++k)
        body((index_)(unit * count_ + k), arrays.template of<held_>(number).at[k * arrays_::SIZE]...);
    (arrays.template put<held_>(unit, number), ...);
}
// body(i, first element of each array's record) for the places `first`, `first + step` and so on below `bound`: of `units`
// vectors of count_ records by their numbers, the first keep_ of them kept, and of what fills no vector.
template <int count_, int keep_, class index_, class body_, class... arrays_>
__device__ __forceinline__ void row(index_ first, index_ step, index_ units, index_ bound, body_ body, arrays_... arrays) {
#pragma unroll
    for (int k = 0; k < keep_; ++k)
        if (first + k * step < units) turn<count_, true>((index_)(first + k * step), k, body, arrays...);
    turns((index_)(first + keep_ * step), units, step, [&](index_ unit) { turn<count_, false>(unit, 0, body, arrays...); });
    for (index_ i = first + units * count_; i < bound; i += step) body(i, *element(arrays.place, i * arrays_::SIZE)...);
}
}
//: runs vectors
namespace tunesmith {
// Of a run of elements of each lane columns_ in shared memory, with before_ ahead of them and after_ behind. What a lane has
// begins at a vector, in other banks than its neighbour's.
template <class type_, int columns_, int before_, int after_> struct Runs {
    using type = type_;
    enum { WIDE = 16 / sizeof(type_), AFTER = after_, BEFORE = (before_ + WIDE - 1) / WIDE * WIDE,
           COUNT = BEFORE + columns_ + (after_ + WIDE - 1) / WIDE * WIDE };
    Elements<type_, WIDE> at[32][COUNT / WIDE + 1];
    __device__ __forceinline__ type_& of(int lane, int column) { return reinterpret_cast<type_*>(at[lane])[BEFORE + column]; }
};
// Moves what all lanes have from column `low` on and below `high`, wide_ neighbours at a time; column 0 is array[begin]. Several
// are on their way at once.
template <bool back_, int hint_, int wide_, class runs_, class array_>
__device__ __forceinline__ void move(runs_& runs, int lane, array_ array, long long begin, int low, int high) {
    using vector_ = Elements<typename runs_::type, wide_>;
    constexpr int count = runs_::COUNT / wide_, together = wide_ == 1 ? 4 : count < 8 ? count : 8;
    for (int from = 0; from < count; from += together) {
        vector_ got[together], *element[together];
        long long place[together];
#pragma unroll
        for (int k = 0; k < together; ++k) {
            const int number = (from + k) * 32 + lane, run = number / count % 32, column = number % count * wide_ - runs_::BEFORE;
            const int first = runs_::BEFORE ? __shfl_sync(0xffffffffu, low, run) : 0, last = __shfl_sync(0xffffffffu, high, run);
            place[k] = __shfl_sync(0xffffffffu, begin, run) + column;
            const bool is_there = from + k < count && column >= first && column + wide_ <= last;
            element[k] = is_there ? reinterpret_cast<vector_*>(&runs.of(run, column)) : nullptr;
            if (is_there) got[k] = back_ ? *element[k] : load<hint_>(reinterpret_cast<const vector_*>(array + place[k]));
        }
#pragma unroll
        for (int k = 0; k < together; ++k)
            if (element[k]) {
                if constexpr (back_) store<hint_>(reinterpret_cast<vector_*>(array + place[k]), got[k]);
                else *element[k] = got[k];
            }
    }
}
// The same for the next columns of runs that have `left` elements from array[begin] on, of an array of `length`.
template <bool back_, int hint_, class runs_, class array_>
__device__ __forceinline__ void move(runs_& runs, int lane, array_ array, long long begin, long long left, long long length) {
    constexpr int wide = runs_::WIDE, end = runs_::COUNT - runs_::BEFORE;
    const long long all = back_ ? left : (left + runs_::AFTER + wide - 1) / wide * wide, most = all < length - begin ? all : length - begin;
    const int low = begin < runs_::BEFORE ? -(int)begin : -runs_::BEFORE, high = left <= 0 ? low : most < end ? (int)most : end;
    const bool whole = low % wide == 0 && high % wide == 0 && aligned<wide>(array + begin);
    if (__all_sync(0xffffffffu, high == low || whole)) move<back_, hint_, wide>(runs, lane, array, begin, low, high);
    else move<back_, hint_, 1>(runs, lane, array, begin, low, high);
}
// Whether a lane of the warp has a run of a part and more.
template <int columns_> __device__ __forceinline__ bool are_long(long long first, long long bound) {
    return __any_sync(0xffffffffu, bound - first >= columns_);
}
// round(i, column) for i from first to bound in parts of columns_, as take(first, left) brings them and give(first, left) takes
// them back; the lanes of a warp, which have runs of their own, bring and take together.
template <int columns_, class take_, class give_, class round_>
__device__ __forceinline__ void parts(long long first, long long bound, take_ take, give_ give, round_ round) {
    for (; __any_sync(0xffffffffu, first < bound); first += columns_) {
        const long long left = bound - first;
        __syncwarp();
        take(first, left);
        __syncwarp();
#ifdef TUNESMITH_UNROLL
#pragma unroll TUNESMITH_UNROLL
#endif
        for (int column = 0; column < (left < columns_ ? (int)left : columns_); ++column) round(first + column, column);
        __syncwarp();
        give(first, left);
    }
    __syncwarp();
}
}
//: copies
namespace tunesmith {
// The copies of a bin lie side by side, for neighbouring lanes. Here lanes, which have different bins, begin with different ones:
// they are in different banks.
template <class type_, int count_> __device__ __forceinline__ type_ total(const type_ (&bin)[count_]) {
    type_ sum = 0;
#pragma unroll 8
    for (int k = 0; k < count_; ++k) sum += bin[(k + threadIdx.x) % count_];
    return sum;
}
template <class type_, int count_> __device__ __forceinline__ void clear(type_ (&bin)[count_]) {
#pragma unroll 8
    for (int k = 0; k < count_; ++k) bin[(k + threadIdx.x) % count_] = 0;
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
//: permuted hints
// A tile of side x side elements in shared memory, whose rows have an element more, so that a column lies in different banks.
#define TUNESMITH_TILE(type, name, side) __shared__ type name[side][(side) + 1]
#define TUNESMITH_MEET __syncthreads()
#define TUNESMITH_EACH_TILE(number, count) for (unsigned int number = blockIdx.x; number < (count); number += gridDim.x)
// Goes over the places of a tile by blocks of side x rows threads, which are neighbours along `inner`.
#define TUNESMITH_OVER_TILE(side, rows, inner, outer) \
    _Pragma("unroll") for (long long inner = first_##inner + threadIdx.x, outer = first_##outer + threadIdx.y, \
                           end_of_tile = outer + (side); outer < end_of_tile; outer += (rows))
//: products vectors
namespace tunesmith {
// side_ x depth_ elements of an operand, of which pack_ neighbouring steps lie together, for instructions that take them at
// once. Rows are longer than they need to be: they begin at a vector still, and in other banks; single steps also exchange
// their vectors, so that lanes which bring neighbouring steps find them in different banks.
template <class type_, int side_, int depth_, int pack_> struct Part {
    alignas(16) type_ at[depth_ / pack_][(side_ + (pack_ == 2 ? 8 : 4)) * pack_];
    // The word of pack_ steps, of which `step` is the first.
    __device__ __forceinline__ Elements<type_, pack_>& of(int along, int step) {
        const int turned = pack_ == 1 ? along ^ step / 4 % 8 * 4 : along;
        return reinterpret_cast<Elements<type_, pack_>&>(at[step / pack_][turned * pack_]);
    }
};
// What a thread brings of an operand: fetch(from, ...) the steps from `from` on, of which `left` are left, then put(part). at(along,
// step): the address of an element; is_in(along): whether the operand has it, and all before it. What it has not is 0.
// neighbours_: in memory, 1: along; 2: steps; 0: neither.
template <int threads_, int neighbours_, int hint_, class type_, int side_, int depth_, int pack_> struct Stage {
    enum { MOST = 16 / sizeof(type_), INNER = neighbours_ == 2 ? depth_ : side_,
           COUNT = neighbours_ == 0 ? 1 : MOST < INNER ? MOST : INNER,
           WIDE = neighbours_ == 1 ? COUNT : 1, DEEP = neighbours_ == 2 && COUNT > pack_ ? COUNT : pack_,
           TOGETHER = WIDE < 4 || pack_ * sizeof(type_) > 4 ? 1 : 4, ALL = side_ / WIDE * (depth_ / DEEP), PIECES = (ALL + threads_ - 1) / threads_ };
    Elements<type_, WIDE * DEEP> got[PIECES];
    static __device__ __forceinline__ int number(int piece) { return threadIdx.x + piece * threads_; }
    static __device__ __forceinline__ int along(int piece) {
        return (neighbours_ == 2 ? number(piece) / (depth_ / DEEP) : number(piece) % (side_ / WIDE)) * WIDE;
    }
    static __device__ __forceinline__ int step(int piece) {
        return (neighbours_ == 2 ? number(piece) % (depth_ / DEEP) : number(piece) / (side_ / WIDE)) * DEEP;
    }
    template <class at_, class in_> __device__ __forceinline__ void fetch(long long from, long long left, at_ at, in_ is_in) {
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            if (ALL % threads_ && number(piece) >= ALL) continue;
            const bool whole = left >= depth_ && is_in(along(piece) + WIDE - 1);
#pragma unroll
            for (int first = 0; first < WIDE * DEEP; first += COUNT) {
                const auto place = [&](int i) { return neighbours_ == 2 ? at(along(piece), from + step(piece) + i) : at(along(piece) + i % WIDE, from + step(piece) + i / WIDE); };
                if (COUNT > 1 && whole && aligned<COUNT>(place(first))) {
                    reinterpret_cast<Elements<type_, COUNT>&>(got[piece].at[first]) = load<hint_>(reinterpret_cast<const Elements<type_, COUNT>*>(place(first)));
                } else {
#pragma unroll
                    for (int i = first; i < first + COUNT; ++i) {
                        const bool there = step(piece) + (neighbours_ == 2 ? i : i / WIDE) < left && (whole || is_in(along(piece) + (neighbours_ == 2 ? 0 : i % WIDE)));
                        got[piece].at[i] = there ? load<hint_>(place(i)) : type_{};
                    }
                }
            }
        }
    }
    __device__ __forceinline__ void put(Part<type_, side_, depth_, pack_>& part) {
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece) {
            if (ALL % threads_ && number(piece) >= ALL) continue;
#pragma unroll
            for (int first = 0; first < DEEP; first += pack_)
#pragma unroll
                for (int i = 0; i < WIDE; i += TOGETHER) {
                    Elements<type_, pack_ * TOGETHER> words;
#pragma unroll
                    for (int k = 0; k < pack_ * TOGETHER; ++k)
                        words.at[k] = got[piece].at[neighbours_ == 2 ? first + k : (first + k % pack_) * WIDE + i + k / pack_];
                    reinterpret_cast<Elements<type_, pack_ * TOGETHER>&>(part.of(along(piece) + i, step(piece) + first)) = words;
                }
        }
    }
};
template <int rows_, int columns_, class body_> __device__ __forceinline__ void each(body_ body) {
#pragma unroll
    for (int row = 0; row < rows_; ++row)
#pragma unroll
        for (int column = 0; column < columns_; ++column) body(row, column);
}
// Which rows and columns of a tile a thread has: as the fragments of tensor cores where steps_ is 16, else in vectors of four. A
// warp's are a rectangle.
template <int steps_, int side_, int rows_, int columns_> struct Own {
    enum { DOWN = side_ / rows_, ACROSS = side_ / columns_, HIGH = DOWN < 8 ? DOWN : 8, WIDE = 32 / HIGH };
    int down, across;
    __device__ __forceinline__ Own() {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        down = warp / (ACROSS / WIDE) * HIGH + lane / WIDE;
        across = warp % (ACROSS / WIDE) * WIDE + lane % WIDE;
    }
    template <int count_> static __device__ __forceinline__ int vector(int own, int k) {
        return count_ < 4 ? own * count_ + k : k / 4 * (4 * side_ / count_) + own * 4 + k % 4;
    }
    __device__ __forceinline__ int row(int k) const {
        return steps_ == 16 ? down / 8 * (8 * rows_) + k * 8 + down % 8 : vector<rows_>(down, k);
    }
    __device__ __forceinline__ int column(int k) const {
        return steps_ == 16 ? across / 4 * (4 * columns_) + k / 2 * 8 + across % 4 * 2 + k % 2 : vector<columns_>(across, k);
    }
    // Elements that a thread has next to each other, as one access.
    template <int count_, class type_, class part_, class place_>
    static __device__ __forceinline__ void take(type_ (&to)[count_], part_& part, int step, place_ place) {
        constexpr int most = sizeof(type_) > 4 ? 2 : 4, wide = count_ < most ? count_ : most;
#pragma unroll
        for (int k = 0; k < count_; k += wide) {
            const auto found = reinterpret_cast<const Elements<type_, wide>&>(part.of(place(k), step));
#pragma unroll
            for (int i = 0; i < wide; ++i) to[k + i] = found.at[i];
        }
    }
    template <class type_, class part_> __device__ __forceinline__ void rows(type_ (&to)[rows_], part_& part, int step) const {
        take(to, part, step, [&](int k) { return row(k); });
    }
    template <class type_, class part_> __device__ __forceinline__ void columns(type_ (&to)[columns_], part_& part, int step) const {
        take(to, part, step, [&](int k) { return column(k); });
    }
};
// add(step) for steps from first to bound, each steps_ behind the one before; of each depth_ of them first fetch(from, left) and
// put(). What comes next is on its way meanwhile.
template <int steps_, int depth_, class fetch_, class put_, class add_>
__device__ __forceinline__ void multiply(long long first, long long bound, fetch_ fetch, put_ put, add_ add) {
    if (first < bound) fetch(first, bound - first);
    for (long long from = first; from < bound; from += depth_) {
        const long long left = bound - from;
        put();
        __syncthreads();
        if (left > depth_) fetch(from + depth_, left - depth_);
        if (left >= depth_) {
#pragma unroll
            for (int step = 0; step < depth_; step += steps_) add(step, from + step);
        } else {
            for (int step = 0; step < left; step += steps_) add(step, from + step);
        }
        __syncthreads();
    }
}
}
//: packed_products products
namespace tunesmith {
// Adds to all sums of a thread the products of four steps.
template <class own_, int rows_, int columns_, class sum_, class type_, int side_, int depth_>
__device__ __forceinline__ void dot(const own_& own, sum_ (&sums)[rows_][columns_], Part<type_, side_, depth_, 4>& downs,
                                    Part<type_, side_, depth_, 4>& acrosses, int step) {
    int down[rows_], across[columns_];
    own.rows(down, downs, step);
    own.columns(across, acrosses, step);
    each<rows_, columns_>([&](int i, int j) {
        if constexpr ((type_)-1 < 0) sums[i][j] = __dp4a(down[i], across[j], (int)sums[i][j]);
        else sums[i][j] = __dp4a((unsigned)down[i], (unsigned)across[j], (unsigned)sums[i][j]);
    });
}
}
//: fragment_products products
namespace tunesmith {
// Adds to all sums of a warp the products of sixteen steps, by tensor cores.
template <class own_, int rows_, int columns_, class type_, int side_, int depth_>
__device__ __forceinline__ void dot(const own_& own, float (&sums)[rows_][columns_], Part<type_, side_, depth_, 2>& downs,
                                    Part<type_, side_, depth_, 2>& acrosses, int step) {
    const int mine = threadIdx.x % 4 * 2, column = own.column(0) - mine + threadIdx.x % 32 / 4;
    const auto word = [&](auto& part, int along, int from) { return reinterpret_cast<const unsigned&>(part.of(along, from)); };
    unsigned across[columns_ / 2][2];
#pragma unroll
    for (int j = 0; j < columns_ / 2; ++j)
#pragma unroll
        for (int k = 0; k < 2; ++k) across[j][k] = word(acrosses, column + j * 8, step + mine + k * 8);
#pragma unroll
    for (int i = 0; i < rows_; i += 2) {
        unsigned down[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) down[k] = word(downs, own.row(i + k % 2), step + mine + k / 2 * 8);
#pragma unroll
        for (int j = 0; j < columns_; j += 2) {
            float c[4] = {sums[i][j], sums[i][j + 1], sums[i + 1][j], sums[i + 1][j + 1]};
            kit::multiply<type_>(c, down, across[j / 2][0], across[j / 2][1]);
            each<2, 2>([&](int row, int column) { sums[i + row][j + column] = c[row * 2 + column]; });
        }
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
