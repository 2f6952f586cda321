// A block works on tiles of BLOCK_Y rows by BLOCK_X * VEC * UNROLL columns. A thread has UNROLL vectors of both halves
// in flight before it computes. Rows that no vector divides take the same tiles element by element: their gates, ups and
// results begin at three different places between vectors.

__device__ __forceinline__ float silu(float x) {
#if FAST_EXP
    return __fdividef(x, 1.0f + __expf(-x));
#else
    return __fdividef(x, 1.0f + expf(-x));  // within 2 ulp, and a fraction of the instructions of an exact division
#endif
}

// UNROLL vectors, BLOCK_X of them apart. All loads are issued before the first is used.
__device__ __forceinline__ void vectors(const T* __restrict__ gate, const T* __restrict__ up, T* __restrict__ out,
                                        int first, int d) {
    if (first >= d) return;
    Pack<VEC> a[UNROLL], b[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const int col = first + u * BLOCK_X * VEC;
        if (col < d) {
            a[u] = load<VEC>(gate + col);
            b[u] = load<VEC>(up + col);
        }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const int col = first + u * BLOCK_X * VEC;
        if (col < d) {
            Pack<VEC> c;
#pragma unroll
            for (int i = 0; i < VEC; ++i)
                from_float(c.value[i], silu(to_float(a[u].value[i])) * to_float(b[u].value[i]));
            store<VEC>(out + col, c);
        }
    }
}

// The elements from `first` to `last`, BLOCK_X apart, two at once. The second of a pair may be `last` once more.
__device__ __forceinline__ void elements(const T* __restrict__ gate, const T* __restrict__ up, T* __restrict__ out,
                                         int first, int last) {
#pragma unroll 1  // few rows need this: it must not decide how many registers the kernel takes
    for (int col = first; col <= last; col += 2 * BLOCK_X) {
        const int more = min(col + BLOCK_X, last);
        const T a = gate[col], b = up[col], c = gate[more], e = up[more];
        from_float(out[col], silu(to_float(a)) * to_float(b));
        from_float(out[more], silu(to_float(c)) * to_float(e));
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y)
silu_and_mul(const T* __restrict__ input, T* __restrict__ out, int n, int d) {
    constexpr int SPAN = BLOCK_X * VEC * UNROLL;
    const unsigned across = (d + SPAN - 1) / SPAN;
    const unsigned tiles = across * ((n + BLOCK_Y - 1) / BLOCK_Y);
    // The same answer in every thread: vectors need rows that start and end on one.
    const unsigned long long addresses = reinterpret_cast<unsigned long long>(input) | reinterpret_cast<unsigned long long>(out);
    const bool aligned = VEC == 1 || (d % VEC == 0 && addresses % Pack<VEC>::PIECE == 0);

    unsigned tile = blockIdx.x;
    do {
        const unsigned down = tile / across;
        const int row = down * BLOCK_Y + threadIdx.y;
        const int start = (tile - down * across) * SPAN;
        if (row < n) {
            const T* gate = input + row * 2ll * d;
            T* to = out + (long long)row * d;
            if (aligned)
                vectors(gate, gate + d, to, start + threadIdx.x * VEC, d);
            else
                elements(gate, gate + d, to, start + threadIdx.x, min(start + SPAN, d) - 1);
        }
        tile += gridDim.x;
    } while (WALK && tile < tiles);  // otherwise the grid has a block for every tile
}
