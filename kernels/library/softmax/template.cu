// A row belongs to BLOCK_X threads, BLOCK_Y rows to a block. A thread holds ITEMS vectors of its row in registers, so that
// they are read once; what a longer row has beyond that is read again.

#include "kit/reduce.cuh"
#include "kit/views.cuh"

enum {
    FEW = 4,  // elements of a thread, of rows that no vector divides and that are read once
    WALKS = GRID_CAP > 0,  // a block goes on to further rows
};

// What the warps of a row leave for each other.
union Partials {
    struct { float maxima[BLOCK_Y][BLOCK_X / 32], sums[BLOCK_Y][BLOCK_X / 32]; } in_turn;
    kit::Exponentials together[ONLINE && WALKS ? 2 : 1][BLOCK_Y][BLOCK_X / 32];
};

__device__ __forceinline__ float exponential(float x) { return kit::exponential<FAST_EXP>(x); }

__device__ __forceinline__ float largest_of(float largest, const kit::Vector<T, VEC>& x) {
#pragma unroll
    for (int k = 0; k < VEC; ++k) largest = fmaxf(largest, float(x.value[k]));
    return largest;
}

// Rows that all start and end on a vector.
__device__ __forceinline__ void rows(const T* __restrict__ input, T* __restrict__ out, int n, int d, Partials& partials) {
    kit::Columns<BLOCK_X, VEC, ITEMS> columns;
    kit::RowOfBlock<BLOCK_Y, WALKS> at;
    do {
        // Threads beyond the last row have no columns, but take part in the barriers.
        columns.end = at.row < n ? d : 0;
        const T* from = input + at.row * d;
        T* to = out + at.row * d;
        kit::Vector<T, VEC> x[ITEMS];
        columns.fetch<CACHE>(x, from);
        float largest = KIT_LOWEST;
        columns.held([&](int i, int) { largest = largest_of(largest, x[i]); });
#if !ONLINE
        columns.more([&](int col) { largest = largest_of(largest, kit::load<VEC, CACHE>(from + col)); });
        largest = kit::fold_row<BLOCK_X>(largest, partials.in_turn.maxima[threadIdx.y], kit::Largest{});
#endif

        // Of the row's own maximum, or online of this thread's alone.
        float sum = 0.0f;
#if HOLD_EXP
        float e[ITEMS][VEC];
        const float base = largest;
#endif
        columns.each_held([&](int i, int k) {
            const float y = exponential(float(x[i].value[k]) - largest);
            sum += y;
#if HOLD_EXP
            e[i][k] = y;
#endif
        });
        columns.more([&](int col) {
            const kit::Vector<T, VEC> more = kit::load<VEC, CACHE>(from + col);
#if ONLINE
            const float larger = largest_of(largest, more);
            sum *= exponential(largest - larger);
            largest = larger;
#endif
#pragma unroll
            for (int k = 0; k < VEC; ++k) sum += exponential(float(more.value[k]) - largest);
        });
#if ONLINE
        auto& partial = partials.together[WALKS ? at.round & 1 : 0][threadIdx.y];
        const auto all = kit::fold_row<BLOCK_X>(kit::Exponentials{largest, sum}, partial, kit::JoinExponentials<FAST_EXP>{});
        largest = all.largest;
        sum = all.sum;
#else
        sum = kit::fold_row<BLOCK_X>(sum, partials.in_turn.sums[threadIdx.y], kit::Sum{});
#endif

        const float scale = 1.0f / sum;
#if HOLD_EXP
        const float held_scale = ONLINE ? exponential(base - largest) * scale : scale;
#endif
        columns.held([&](int i, kit::Column col) {
            kit::Vector<T, VEC> result;
#pragma unroll
            for (int k = 0; k < VEC; ++k) {
#if HOLD_EXP
                result.value[k] = T(e[i][k] * held_scale);
#else
                result.value[k] = T(exponential(float(x[i].value[k]) - largest) * scale);
#endif
            }
            kit::store<CACHE>(to + col, result);
        });
        columns.more([&](int col) {
            const auto normalised = [&](auto x, auto y, auto i) { y[i] = T(exponential(float(x[i]) - largest) * scale); };
            kit::each_loaded<VEC>(col, normalised, kit::In<T, VEC, CACHE>(from), kit::Out<T, VEC, CACHE>(to));
        });
    } while (at.next(n));
}

// Rows that begin or end between vectors hold nothing and are read three times. Their maximum comes before their sum in every
// configuration.
__device__ __forceinline__ void unaligned_rows(const T* __restrict__ input, T* __restrict__ out, int n, int d,
                                               Partials& partials) {
    const bool alike = kit::alike<T, 4>(input, out);
    kit::RowOfBlock<BLOCK_Y, WALKS> at;
    do {
        const kit::In<T, 4, CACHE> x(input + at.row * d);
        const kit::Out<T, 4, CACHE> y(out + at.row * d);
        const kit::Pieces<BLOCK_X, 4> pieces(x.pointer, at.row < n ? d : 0, alike);
        float largest = KIT_LOWEST, sum = 0.0f;
        kit::each<4>(pieces, [&](auto x, auto i) { largest = fmaxf(largest, float(x[i])); }, x);
        largest = kit::fold_row<BLOCK_X>(largest, partials.in_turn.maxima[threadIdx.y], kit::Largest{});
        kit::each<4>(pieces, [&](auto x, auto i) { sum += exponential(float(x[i]) - largest); }, x);
        const float scale = 1.0f / kit::fold_row<BLOCK_X>(sum, partials.in_turn.sums[threadIdx.y], kit::Sum{});
        kit::each<2>(pieces, [&](auto x, auto y, auto i) { y[i] = T(exponential(float(x[i]) - largest) * scale); }, x, y);
    } while (at.next(n));
}

// Of such rows those of a few elements for each thread, which are read once: what three readings cost shows most there.
__device__ __forceinline__ void short_rows(const T* __restrict__ input, T* __restrict__ out, int n, int d,
                                           Partials& partials) {
    kit::RowOfBlock<BLOCK_Y, WALKS> at;
    do {
        const kit::Columns<BLOCK_X, 1, FEW> columns(at.row < n ? d : 0);
        const T* from = input + at.row * d;
        T* to = out + at.row * d;
        float x[FEW];
        float largest = KIT_LOWEST, sum = 0.0f;
        columns.held([&](int i, int col) {
            x[i] = float(from[col]);
            largest = fmaxf(largest, x[i]);
        });
        largest = kit::fold_row<BLOCK_X>(largest, partials.in_turn.maxima[threadIdx.y], kit::Largest{});
        columns.held([&](int i, int) {
            x[i] = exponential(x[i] - largest);
            sum += x[i];
        });
        const float scale = 1.0f / kit::fold_row<BLOCK_X>(sum, partials.in_turn.sums[threadIdx.y], kit::Sum{});
        columns.held([&](int i, int col) { to[col] = T(x[i] * scale); });
    } while (at.next(n));
}

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y, 1)
softmax(const T* __restrict__ input, T* __restrict__ out, int n, int d) {
    __shared__ Partials partials;
    const bool aligned = kit::on_vectors<T, VEC>(input, out);
    if (d % VEC == 0 && aligned)
        rows(input, out, n, d, partials);
    else if (d <= FEW * BLOCK_X)
        short_rows(input, out, n, d, partials);
    else
        unaligned_rows(input, out, n, d, partials);
}
