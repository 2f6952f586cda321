// Tiles of matrices: in which order blocks take them, how they lie in shared memory, how results leave.

namespace kit {

// First row and column of tile `at` of an m x n matrix in tiles of BM x BN. Tiles are counted GROUP down before the next to the
// right: what neighbours in time read stays in the last cache.
template <int BM, int BN, int GROUP> __device__ __forceinline__ int2 tile_of(int at, int m, int n) {
    const int tiles_m = (m + BM - 1) / BM, tiles_n = (n + BN - 1) / BN;
    const int band = at / (GROUP * tiles_n), high = min(GROUP, tiles_m - band * GROUP), within = at % (GROUP * tiles_n);
    return make_int2((band * GROUP + within % high) * BM, within / high * BN);
}

// A tile in shared memory whose rows are PAD elements longer than it, which spreads a column over the banks.
template <class T, int ROWS, int COLS, int PAD> struct Padded {
    enum { WIDTH = COLS + PAD };
    T at[ROWS * WIDTH];
    __device__ __forceinline__ T& operator()(int row, int col) { return at[row * WIDTH + col]; }
    __device__ __forceinline__ const T& operator()(int row, int col) const { return at[row * WIDTH + col]; }
};

// The byte at which chunk `chunk` of 16 bytes of row `row` lies in a swizzled tile whose rows have CHUNKS chunks, a power of two:
// eight rows of a column of chunks lie in different banks. Rows of 128 bytes and more exchange chunks by the row's last three
// bits; two rows of 64 bytes share a line of banks.
template <int CHUNKS> __device__ __forceinline__ int swizzled(int row, int chunk) {
    constexpr int BITS = CHUNKS >= 8 ? 7 : CHUNKS - 1;
    const int by = CHUNKS >= 8 ? row : CHUNKS == 4 ? row >> 1 : row >> 2;
    return (row * CHUNKS + (chunk ^ (by & BITS))) * 16;
}

// Two neighbouring results of an m x n matrix of 16-bit floats, as one access where rows have an even length. col is even.
template <class T>
__device__ __forceinline__ void write_pair(T* __restrict__ c, int row, int col, int m, int n, float x, float y) {
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

// The product of float32 factors on the ordinary units, by tiles of BM x BN: tensor cores round them to 10 bits of mantissa. A
// thread takes ROWS results of a column at a time, so that what it reads of b serves them all.
template <int BM, int BN, int GROUP>
__device__ __forceinline__ void plainly(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c,
                                        int m, int n, int k) {
    enum { ROWS = 8 };
    const int tiles = ((m + BM - 1) / BM) * ((n + BN - 1) / BN);
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int2 first = tile_of<BM, BN, GROUP>(tile, m, n);
        for (int at = threadIdx.x + blockIdx.z * blockDim.x; at < BM / ROWS * BN; at += blockDim.x * gridDim.z) {
            const int row = first.x + at / BN * ROWS, col = first.y + at % BN;
            if (row >= m || col >= n) continue;
            const float* from[ROWS];
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

}  // namespace kit
