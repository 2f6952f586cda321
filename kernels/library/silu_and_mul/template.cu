// A block works on tiles of BLOCK_Y rows by BLOCK_X * VEC * UNROLL columns. A thread has UNROLL vectors of both halves
// in flight before it computes. Rows that no vector divides take the same tiles element by element.

__device__ __forceinline__ float silu(float x) {
#if FAST_EXP
    return __fdividef(x, 1.0f + __expf(-x));
#else
    return __fdividef(x, 1.0f + expf(-x));  // 2 ulp; an exact division takes as long to compile as all the rest
#endif
}

// UNROLL vectors of V elements, BLOCK_X vectors apart. All loads are issued before the first is used.
template <int V>
__device__ __forceinline__ void columns(const T* __restrict__ gate, const T* __restrict__ up, T* __restrict__ out,
                                        int first, int d) {
    Pack<V> a[UNROLL], b[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const int col = first + u * BLOCK_X * V;
        if (col < d) {
            a[u] = load<V>(gate + col);
            b[u] = load<V>(up + col);
        }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        const int col = first + u * BLOCK_X * V;
        if (col < d) {
            Pack<V> c;
#pragma unroll
            for (int i = 0; i < V; ++i)
                from_float(c.value[i], silu(to_float(a[u].value[i])) * to_float(b[u].value[i]));
            store<V>(out + col, c);
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y)
silu_and_mul(const T* __restrict__ input, T* __restrict__ out, int n, int d) {
    constexpr int SPAN = BLOCK_X * VEC * UNROLL;
    const unsigned across = (d + SPAN - 1) / SPAN;
    const unsigned tiles = across * ((n + BLOCK_Y - 1) / BLOCK_Y);
    // The same answer in every thread: vectors need rows that start and end on one.
    const unsigned long long addresses = reinterpret_cast<unsigned long long>(input) | reinterpret_cast<unsigned long long>(out);
    const bool vectors = d % VEC == 0 && addresses % Pack<VEC>::PIECE == 0;

    unsigned tile = blockIdx.x;
    do {
        const int row = tile / across * BLOCK_Y + threadIdx.y;
        const int start = tile % across * SPAN;
        if (row < n) {
            const T* gate = input + row * 2ll * d;
            T* to = out + (long long)row * d;
            if (vectors) {
                columns<VEC>(gate, gate + d, to, start + threadIdx.x * VEC, d);
            } else {
                for (int part = 0; part < VEC; ++part)
                    columns<1>(gate, gate + d, to, start + part * BLOCK_X * UNROLL + threadIdx.x, d);
            }
        }
        tile += gridDim.x;
    } while (GRID_CAP > 0 && tile < tiles);  // without a cap the grid has a block for every tile
}
