// A block works on tiles of BLOCK_Y rows by BLOCK_X * VEC * UNROLL columns. A thread has UNROLL vectors of both halves
// in flight before it computes. Rows that no vector divides take the same tiles element by element: their gates, ups and
// results begin at three different places between vectors.

#include "kit/rows.cuh"

__device__ __forceinline__ T gated(T gate, T up) {
    const float x = float(gate);
#if FAST_EXP
    return T(__fdividef(x, 1.0f + __expf(-x)) * float(up));
#else
    // Within 2 ulp, and a fraction of the instructions of an exact division.
    return T(__fdividef(x, 1.0f + expf(-x)) * float(up));
#endif
}

// UNROLL vectors, BLOCK_X of them apart. All loads are issued before the first is used.
__device__ __forceinline__ void vectors(const T* __restrict__ gate, const T* __restrict__ up, T* __restrict__ out,
                                        int start, int d) {
    const kit::Columns<BLOCK_X, VEC, UNROLL> columns(d, start);
    if (columns.first >= d) return;
    kit::Vector<T, VEC> a[UNROLL], b[UNROLL];
    columns.held([&](int u, int col) {
        a[u] = kit::load<VEC, CACHE>(gate + col);
        b[u] = kit::load<VEC, CACHE>(up + col);
    });
    columns.held([&](int u, int col) {
        kit::Vector<T, VEC> c;
#pragma unroll
        for (int i = 0; i < VEC; ++i) c.value[i] = gated(a[u].value[i], b[u].value[i]);
        kit::store<CACHE>(out + col, c);
    });
}

// The elements from `first` to `last`, BLOCK_X apart, two at once. The second of a pair may be `last` once more.
__device__ __forceinline__ void elements(const T* __restrict__ gate, const T* __restrict__ up, T* __restrict__ out,
                                         int first, int last) {
#pragma unroll 1  // few rows need this: it must not decide how many registers the kernel takes
    for (int col = first; col <= last; col += 2 * BLOCK_X) {
        const int more = min(col + BLOCK_X, last);
        const T a = gate[col], b = up[col], c = gate[more], e = up[more];
        out[col] = gated(a, b);
        out[more] = gated(c, e);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y)
silu_and_mul(const T* __restrict__ input, T* __restrict__ out, int n, int d) {
    constexpr int SPAN = BLOCK_X * VEC * UNROLL;
    const unsigned across = (d + SPAN - 1) / SPAN;
    const unsigned tiles = across * ((n + BLOCK_Y - 1) / BLOCK_Y);
    // Vectors need rows that start and end on one.
    const bool begin = kit::on_vectors<T, VEC>(input, out), aligned = VEC == 1 || (d % VEC == 0 && begin);
    kit::TileOfBlock<WALK> at;
    do {
        const unsigned down = at.tile / across;
        const int row = down * BLOCK_Y + threadIdx.y;
        const int start = (at.tile - down * across) * SPAN;
        if (row < n) {
            const T* gate = input + row * 2ll * d;
            T* to = out + (long long)row * d;
            if (aligned)
                vectors(gate, gate + d, to, start, d);
            else
                elements(gate, gate + d, to, start + threadIdx.x, min(start + SPAN, d) - 1);
        }
    } while (at.next(tiles));
}
