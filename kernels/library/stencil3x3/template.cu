// A thread takes VEC columns of ROWS rows, one below the other: each row of the image that it has read serves three of its
// results. Columns beside its own come from its neighbours in the warp, or from memory again (of which L1 has most).

#include "kit/rows.cuh"

// A row of a thread's columns, with one more on either side.
template <int V> struct Line { float value[V + 2]; };

__device__ __forceinline__ float element(const T* row, int col, int w) {
    return 0 <= col && col < w ? float(row[col]) : 0.0f;
}

// The vector and, where a warp's columns end, what lies beyond.
template <int V>
__device__ __forceinline__ void read(Line<V>& to, const T* row, bool inside, int first, int w) {
    if (inside && first < w) {
        const kit::Vector<T, V> x = kit::load<V, CACHE>(row + first);
#pragma unroll
        for (int k = 0; k < V; ++k) to.value[k + 1] = float(x.value[k]);
    } else {
#pragma unroll
        for (int k = 0; k < V; ++k) to.value[k + 1] = 0.0f;
    }
#if SHUFFLE
    // BLOCK_X is at least a warp, so that its threads have neighbouring columns of one row.
    to.value[0] = __shfl_up_sync(0xffffffffu, to.value[V], 1);
    to.value[V + 1] = __shfl_down_sync(0xffffffffu, to.value[1], 1);
    if (threadIdx.x % 32 == 0) to.value[0] = inside ? element(row, first - 1, w) : 0.0f;
    if (threadIdx.x % 32 == 31) to.value[V + 1] = inside ? element(row, first + V, w) : 0.0f;
#else
    to.value[0] = inside ? element(row, first - 1, w) : 0.0f;
    to.value[V + 1] = inside ? element(row, first + V, w) : 0.0f;
#endif
}

template <int V>
__device__ __forceinline__ void write(T* to, const Line<V>& above, const Line<V>& here, const Line<V>& below,
                                      const float (&filter)[9]) {
    kit::Vector<T, V> result;
#pragma unroll
    for (int k = 0; k < V; ++k) {
        float sum = 0.0f;
#pragma unroll
        for (int x = 0; x < 3; ++x)
            sum += filter[x] * above.value[k + x] + filter[3 + x] * here.value[k + x] + filter[6 + x] * below.value[k + x];
        result.value[k] = T(sum);
    }
    kit::store<CACHE>(to, result);
}

// Rows of the image that all start and end on a vector.
__device__ __forceinline__ void vectors(const T* __restrict__ image, const float (&filter)[9], T* __restrict__ out, int h, int w,
                                        int first_row) {
    const int first = (blockIdx.x * BLOCK_X + threadIdx.x) * VEC;
    const auto line = [&](Line<VEC>& to, int row) {
        read<VEC>(to, image + (long long)row * w, 0 <= row && row < h, first, w);
    };
#if AHEAD
    // All that the thread needs is asked for before the first result.
    Line<VEC> lines[ROWS + 2];
#pragma unroll
    for (int i = 0; i < ROWS + 2; ++i) line(lines[i], first_row - 1 + i);
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
        if (first_row + i < h && first < w)
            write<VEC>(out + (long long)(first_row + i) * w + first, lines[i], lines[i + 1], lines[i + 2], filter);
#else
    Line<VEC> above, here, below;
    line(above, first_row - 1);
    line(here, first_row);
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        line(below, first_row + i + 1);
        if (first_row + i < h && first < w)
            write<VEC>(out + (long long)(first_row + i) * w + first, above, here, below, filter);
        above = here;
        here = below;
    }
#endif
}

// Rows that begin between vectors: element by element, VEC of them BLOCK_X apart.
__device__ __forceinline__ void elements(const T* __restrict__ image, const float (&filter)[9], T* __restrict__ out, int h,
                                         int w, int first_row) {
#pragma unroll 1
    for (int k = 0; k < VEC; ++k) {
        const int col = (blockIdx.x * VEC + k) * BLOCK_X + threadIdx.x;
        if (col >= w) return;
        const auto line = [&](float (&to)[3], int row) {
            const T* from = image + (long long)row * w;
            const bool inside = 0 <= row && row < h;
#pragma unroll
            for (int x = 0; x < 3; ++x) to[x] = inside ? element(from, col - 1 + x, w) : 0.0f;
        };
        float above[3], here[3], below[3];
        line(above, first_row - 1);
        line(here, first_row);
#pragma unroll 4
        for (int i = 0; i < ROWS; ++i) {
            if (first_row + i >= h) break;
            line(below, first_row + i + 1);
            float sum = 0.0f;
#pragma unroll
            for (int x = 0; x < 3; ++x) sum += filter[x] * above[x] + filter[3 + x] * here[x] + filter[6 + x] * below[x];
            out[(long long)(first_row + i) * w + col] = T(sum);
#pragma unroll
            for (int x = 0; x < 3; ++x) {
                above[x] = here[x];
                here[x] = below[x];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y)
stencil3x3(const T* __restrict__ image, const float* __restrict__ filter, T* __restrict__ out, int n, int h, int w) {
    float weights[9];
#pragma unroll
    for (int i = 0; i < 9; ++i) weights[i] = filter[i];
    // Images lie one below the other in the grid.
    const int bands = (h + BLOCK_Y * ROWS - 1) / (BLOCK_Y * ROWS), of_image = blockIdx.y / bands;
    const int first_row = (blockIdx.y - of_image * bands) * BLOCK_Y * ROWS + threadIdx.y * ROWS;
    const long long start = (long long)of_image * h * w;
    const bool aligned = kit::on_vectors<T, VEC>(image, out);
    if (w % VEC == 0 && aligned)
        vectors(image + start, weights, out + start, h, w, first_row);
    else
        elements(image + start, weights, out + start, h, w, first_row);
}
