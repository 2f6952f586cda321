// A row belongs to BLOCK_X threads, BLOCK_Y rows to a block. A thread holds ITEMS vectors of its row in registers, so that
// they are read once; what a longer row has beyond that is read again.

#include "kit/reduce.cuh"
#include "kit/views.cuh"

enum { WALKS = GRID_CAP > 0 };  // a block goes on to further rows

// What the warps of a row leave for each other.
union Partials {
    struct { float sums[BLOCK_Y][BLOCK_X / 32], squares[BLOCK_Y][BLOCK_X / 32]; } in_turn;
#if ONE_PASS
    kit::Moments together[WALKS ? 2 : 1][BLOCK_Y][BLOCK_X / 32];
#endif
};

template <class X> __device__ __forceinline__ float sum_of(const X& x) {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < X::SIZE; ++k) sum += float(x.value[k]);
    return sum;
}

template <class X> __device__ __forceinline__ float squares_of(const X& x, float mean) {
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < X::SIZE; ++k) {
        const float away = float(x.value[k]) - mean;
        squares += away * away;
    }
    return squares;
}

// Rows that all start and end on a vector.
__device__ __forceinline__ void rows(const T* __restrict__ input, const T* __restrict__ weight, const T* __restrict__ bias,
                                     T* __restrict__ out, float eps, int n, int d, Partials& partials) {
    kit::Columns<BLOCK_X, VEC, ITEMS> columns;
#if WEIGHT_EARLY
    // Weight and bias are the same for every row: they may stay in every cache.
    kit::Vector<T, VEC> w[ITEMS], b[ITEMS];
    columns.end = d;
    columns.fetch<kit::KEPT>(w, weight, b, bias);
#endif
    kit::RowOfBlock<BLOCK_Y, WALKS> at;
    do {
        // Threads beyond the last row have no columns, but take part in the barriers.
        columns.end = at.row < n ? d : 0;
        const T* from = input + at.row * d;
        T* to = out + at.row * d;
        kit::Vector<T, VEC> loaded[ITEMS];
        columns.fetch<CACHE>(loaded, from);
#if HOLD_FLOAT
        kit::Vector<float, VEC> x[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
#pragma unroll
            for (int k = 0; k < VEC; ++k) x[i].value[k] = float(loaded[i].value[k]);
#else
        kit::Vector<T, VEC>(&x)[ITEMS] = loaded;
#endif

        // Of the columns that this thread holds, then of all of them.
        float sum = 0.0f, squares = 0.0f;
        columns.held([&](int i, int) { sum += sum_of(x[i]); });
#if ONE_PASS
        const int first = columns.first, end = columns.end;
        const int vectors = first < end ? min((end - first + columns.STEP - 1) / columns.STEP, ITEMS) : 0;
        float mean = vectors > 0 ? sum / (vectors * VEC) : 0.0f;
#else
        columns.more([&](int col) { sum += sum_of(kit::load<VEC, CACHE>(from + col)); });
        const float mean = kit::fold_row<BLOCK_X>(sum, partials.in_turn.sums[threadIdx.y], kit::Sum{}) / d;
#endif
        columns.held([&](int i, int) { squares += squares_of(x[i], mean); });
#if ONE_PASS
        kit::Moments all{(float)(vectors * VEC), mean, squares};
        columns.more([&](int col) {
            const kit::Vector<T, VEC> more = kit::load<VEC, CACHE>(from + col);
            const float mean_of_more = sum_of(more) / VEC;
            all = kit::JoinMoments{}(all, {VEC, mean_of_more, squares_of(more, mean_of_more)});
        });
        all = kit::fold_row<BLOCK_X>(all, partials.together[WALKS ? at.round & 1 : 0][threadIdx.y], kit::JoinMoments{});
        mean = all.mean;
        squares = all.squares;
#else
        columns.more([&](int col) { squares += squares_of(kit::load<VEC, CACHE>(from + col), mean); });
        squares = kit::fold_row<BLOCK_X>(squares, partials.in_turn.squares[threadIdx.y], kit::Sum{});
#endif

        const float scale = rsqrtf(squares / d + eps);
        const auto scaled = [&](int col, const auto& x, const auto& w, const auto& b) {
            kit::Vector<T, VEC> result;
#pragma unroll
            for (int k = 0; k < VEC; ++k)
                result.value[k] = T((float(x.value[k]) - mean) * scale * float(w.value[k]) + float(b.value[k]));
            kit::store<CACHE>(to + col, result);
        };
        const auto scaled_by_kept = [&](int col, const auto& x) {
            scaled(col, x, kit::load<VEC, kit::KEPT>(weight + col), kit::load<VEC, kit::KEPT>(bias + col));
        };
#if WEIGHT_EARLY
        columns.held([&](int i, int col) { scaled(col, x[i], w[i], b[i]); });
#else
        columns.held([&](int i, int col) { scaled_by_kept(col, x[i]); });
#endif
        columns.more([&](int col) { scaled_by_kept(col, kit::load<VEC, CACHE>(from + col)); });
    } while (at.next(n));
}

// Rows that begin or end between vectors hold nothing and are read three times. Their mean comes before their variance in every
// configuration. Weight and bias, which begin elsewhere between vectors, come element by element.
__device__ __forceinline__ void unaligned_rows(const T* __restrict__ input, const T* __restrict__ weight,
                                               const T* __restrict__ bias, T* __restrict__ out, float eps, int n, int d,
                                               Partials& partials) {
    const bool alike = kit::alike<T, 4>(input, out);
    const kit::Elements<T> w(weight), b(bias);
    kit::RowOfBlock<BLOCK_Y, WALKS> at;
    do {
        const kit::In<T, 4, CACHE> x(input + at.row * d);
        const kit::Out<T, 4, CACHE> y(out + at.row * d);
        const kit::Pieces<BLOCK_X, 4> pieces(x.pointer, at.row < n ? d : 0, alike);
        float sum = 0.0f, squares = 0.0f;
        pieces.vectors<4>([&](int col) { sum += sum_of(kit::load<4, CACHE>(x.pointer + col)); });
        pieces.elements([&](int col) { sum += float(x[col]); });
        const float mean = kit::fold_row<BLOCK_X>(sum, partials.in_turn.sums[threadIdx.y], kit::Sum{}) / d;
        pieces.vectors<4>([&](int col) { squares += squares_of(kit::load<4, CACHE>(x.pointer + col), mean); });
        pieces.elements([&](int col) { squares += (float(x[col]) - mean) * (float(x[col]) - mean); });
        squares = kit::fold_row<BLOCK_X>(squares, partials.in_turn.squares[threadIdx.y], kit::Sum{});
        const float scale = rsqrtf(squares / d + eps);
        const auto scaled = [&](auto x, auto y, auto i) { y[i] = T((float(x[i]) - mean) * scale * float(w[i]) + float(b[i])); };
        kit::each<2>(pieces, scaled, x, y);
    } while (at.next(n));
}

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y, 1)
layernorm(const T* __restrict__ input, const T* __restrict__ weight, const T* __restrict__ bias, T* __restrict__ out,
          float eps, int n, int d) {
    __shared__ Partials partials;
    const bool aligned = kit::on_vectors<T, VEC>(input, weight, bias, out);
    if (d % VEC == 0 && aligned)
        rows(input, weight, bias, out, eps, n, d, partials);
    else
        unaligned_rows(input, weight, bias, out, eps, n, d, partials);
}
