// A row belongs to BLOCK_X threads, BLOCK_Y rows to a block. A thread holds ITEMS vectors of its row in registers from the
// sum of squares to the scaling, so that they are read once; what a longer row has beyond that is read again.

#include "kit/reduce.cuh"
#include "kit/views.cuh"

enum { WALKS = GRID_CAP > 0 };  // a block goes on to further rows
using Partials = float[WALKS ? 2 : 1][BLOCK_Y][BLOCK_X / 32];

// The sum over the threads of a row, in all of them. `round` counts the calls, which take turns with two memories.
__device__ __forceinline__ float row_sum(float x, unsigned round, Partials& partials) {
    return kit::fold_row<BLOCK_X>(x, partials[WALKS ? round & 1 : 0][threadIdx.y], kit::Sum{});
}

template <class X> __device__ __forceinline__ void scaled(T* to, const X& x, float scale, const kit::Vector<T, VEC>& weight) {
    kit::Vector<T, VEC> out;
#pragma unroll
    for (int k = 0; k < VEC; ++k) out.value[k] = T(float(x.value[k]) * scale * float(weight.value[k]));
    kit::store<CACHE>(to, out);
}

// Rows that all start and end on a vector.
__device__ __forceinline__ void rows(T* __restrict__ input, T* __restrict__ residual, const T* __restrict__ weight,
                                     float eps, int n, int d, Partials& partials) {
    kit::Columns<BLOCK_X, VEC, ITEMS> columns;
    // The weight is the same for every row: it may stay in every cache.
    const auto kept = [&](int col) { return kit::load<VEC, kit::KEPT>(weight + col); };
#if WEIGHT_EARLY
    kit::Vector<T, VEC> w[ITEMS];
    columns.end = d;
    columns.fetch<kit::KEPT>(w, weight);
#endif
    kit::RowOfBlock<BLOCK_Y, WALKS> at;
    do {
        // Threads beyond the last row have no columns, but take part in the barriers.
        columns.end = at.row < n ? d : 0;
        T* in = input + at.row * d;
        T* res = residual + at.row * d;
        float sum = 0.0f;

        kit::Vector<T, VEC> a[ITEMS], r[ITEMS];
#if HOLD_FLOAT
        kit::Vector<float, VEC> x[ITEMS];
#else
        kit::Vector<T, VEC>(&x)[ITEMS] = r;
#endif
        columns.held([&](int i, int col) {
            a[i] = kit::load<VEC, CACHE>(in + col);
            r[i] = kit::load<VEC, CACHE>(res + col);
        });
        columns.held([&](int i, int col) {
#pragma unroll
            for (int k = 0; k < VEC; ++k) {
                const float y = float(a[i].value[k]) + float(r[i].value[k]);
                sum += y * y;
                r[i].value[k] = T(y);
#if HOLD_FLOAT
                x[i].value[k] = y;
#endif
            }
            kit::store<CACHE>(res + col, r[i]);
        });
        const auto add = [&](auto a, auto r, auto i) {
            const float y = float(a[i]) + float(r[i]);
            sum += y * y;
            r[i] = T(y);
        };
        // Without a hint: it is read again soon.
        const kit::In<T, VEC, CACHE> more(in);
        columns.more([&](int col) { kit::each_loaded<VEC>(col, add, more, kit::InOut<T, VEC, CACHE, kit::KEPT>(res)); });

        const float scale = rsqrtf(row_sum(sum, at.round, partials) / d + eps);

#if WEIGHT_EARLY
        columns.held([&](int i, int col) { scaled(in + col, x[i], scale, w[i]); });
#else
        columns.held([&](int i, int col) { scaled(in + col, x[i], scale, kept(col)); });
#endif
        columns.more([&](int col) { scaled(in + col, kit::load<VEC, kit::KEPT>(res + col), scale, kept(col)); });
    } while (at.next(n));
}

// Rows that begin or end between vectors hold nothing, and are read again.
__device__ __forceinline__ void unaligned_rows(T* __restrict__ input, T* __restrict__ residual, const T* __restrict__ weight,
                                               float eps, int n, int d, Partials& partials) {
    const bool alike = kit::alike<T, 4>(input, residual);
    kit::RowOfBlock<BLOCK_Y, WALKS> at;
    do {
        const int end = at.row < n ? d : 0;
        T* in = input + at.row * d;
        T* res = residual + at.row * d;
        const kit::Pieces<BLOCK_X, 4> pieces(in, end, alike);
        float sum = 0.0f;
        const auto add = [&](auto a, auto r, auto i) {
            const float y = float(a[i]) + float(r[i]);
            sum += y * y;
            r[i] = T(y);
        };
        kit::each<1>(pieces, add, kit::In<T, 4, CACHE>(in), kit::InOut<T, 4, CACHE, kit::KEPT>(res));

        if (BLOCK_X == 32) __syncwarp();  // a barrier in row_sum otherwise: threads read what others have written
        const float scale = rsqrtf(row_sum(sum, at.round, partials) / d + eps);

        // Two at once. The second of a pair may be the row's last element once more.
#pragma unroll 1
        for (int col = threadIdx.x; col < end; col += 2 * BLOCK_X) {
            const int more = min(col + BLOCK_X, end - 1);
            const T a = res[col], b = weight[col], c = res[more], e = weight[more];
            in[col] = T(float(a) * scale * float(b));
            in[more] = T(float(c) * scale * float(e));
        }
    } while (at.next(n));
}

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y, MIN_BLOCKS)
fused_add_rmsnorm(T* __restrict__ input, T* __restrict__ residual, const T* __restrict__ weight, float eps, int n, int d) {
    __shared__ Partials partials;
    const bool aligned = kit::on_vectors<T, VEC>(input, residual, weight);
    if (d % VEC == 0 && aligned)
        rows(input, residual, weight, eps, n, d, partials);
    else
        unaligned_rows(input, residual, weight, eps, n, d, partials);
}
