// What both kinds of tensor-core templates have in common: the order of tiles, stores, and the product of float32 factors on
// the ordinary units.

// First row and column of a tile of C. Tiles are counted GROUP down before the next to the right: what neighbours in time read
// stays in the last cache.
__device__ __forceinline__ int2 tile_of(int at, int m, int n) {
    const int tiles_m = (m + BM - 1) / BM, tiles_n = (n + BN - 1) / BN;
    const int band = at / (GROUP * tiles_n), high = min(GROUP, tiles_m - band * GROUP), within = at % (GROUP * tiles_n);
    return make_int2((band * GROUP + within % high) * BM, within / high * BN);
}

__device__ __forceinline__ void write(T* __restrict__ c, int row, int col, int m, int n, float x, float y) {
    if (row >= m || col >= n) return;
    T* to = c + (long long)row * n + col;
    if (n % 2 == 0) {
        alignas(4) T pair[2] = {T(x), T(y)};
        *reinterpret_cast<unsigned*>(to) = *reinterpret_cast<const unsigned*>(pair);
        return;
    }
    to[0] = T(x);
    if (col + 1 < n) to[1] = T(y);
}

#if T_IS_FLOAT32
// Tensor cores round float32 to 10 bits of mantissa: such a product is made on the ordinary units. A thread takes ROWS results
// of a column at a time, so that what it reads of b serves them all.
__device__ __forceinline__ void plainly(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c, int m, int n, int k) {
    enum { ROWS = 8 };
    const int tiles = ((m + BM - 1) / BM) * ((n + BN - 1) / BN);
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int2 first = tile_of(tile, m, n);
        for (int at = threadIdx.x + blockIdx.z * blockDim.x; at < BM / ROWS * BN; at += blockDim.x * gridDim.z) {
            const int row = first.x + at / BN * ROWS, col = first.y + at % BN;
            if (row >= m || col >= n) continue;
            const T* from[ROWS];
            float sums[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                from[r] = a + (long long)min(row + r, m - 1) * k;
                sums[r] = 0.0f;
            }
#pragma unroll 4
            for (int i = 0; i < k; ++i) {
                const float y = b[(long long)i * n + col];
#pragma unroll
                for (int r = 0; r < ROWS; ++r) sums[r] += from[r][i] * y;
            }
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
                if (row + r < m) c[(long long)(row + r) * n + col] = sums[r];
        }
    }
}
#endif
