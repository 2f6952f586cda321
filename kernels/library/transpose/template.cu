// A block takes a tile of TILE_N rows and TILE_D columns by way of shared memory, so that both the matrix and its transpose
// are read and written along their rows. Its rows are PAD elements longer than the tile, which spreads a column over the
// banks.

#include "kit/tiles.cuh"
#include "kit/vectors.cuh"

using Tile = kit::Padded<T, TILE_N, TILE_D, PAD>;

// Reads the tile's part of x in vectors of V, as many as a thread takes at once before it leaves them in the tile.
template <int V>
__device__ __forceinline__ void read(const T* __restrict__ x, Tile& tile, int first_row, int first_col, int n,
                                     int d) {
    enum { ACROSS = TILE_D / V, ALL = TILE_N * ACROSS, EACH = (ALL + THREADS - 1) / THREADS, AT_ONCE = EACH < 8 ? EACH : 8 };
#pragma unroll 1
    for (int begin = 0; begin < EACH; begin += AT_ONCE) {
        kit::Vector<T, V> held[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int at = (begin + i) * THREADS + threadIdx.x;
            const int row = first_row + at / ACROSS, col = first_col + at % ACROSS * V;
            if (at < ALL && row < n && col < d) held[i] = kit::load<V, CACHE>(x + (long long)row * d + col);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int at = (begin + i) * THREADS + threadIdx.x;
            if (at < ALL) {
#pragma unroll
                for (int k = 0; k < V; ++k) tile.at[at / ACROSS * Tile::WIDTH + at % ACROSS * V + k] = held[i].value[k];
            }
        }
    }
}

// Writes the tile's columns as rows of the result, in vectors of V.
template <int V>
__device__ __forceinline__ void write(T* __restrict__ out, const Tile& tile, int first_row, int first_col,
                                      int n, int d) {
    enum { ACROSS = TILE_N / V, ALL = TILE_D * ACROSS, EACH = (ALL + THREADS - 1) / THREADS };
#pragma unroll 4
    for (int i = 0; i < EACH; ++i) {
        const int at = i * THREADS + threadIdx.x;
        const int of_row = at % ACROSS * V, of_col = at / ACROSS;
        kit::Vector<T, V> gathered;
        if (at < ALL && first_row + of_row < n && first_col + of_col < d) {
#pragma unroll
            for (int k = 0; k < V; ++k) gathered.value[k] = tile.at[(of_row + k) * Tile::WIDTH + of_col];
            kit::store<CACHE>(out + (long long)(first_col + of_col) * n + first_row + of_row, gathered);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
transpose(const T* __restrict__ x, T* __restrict__ out, int n, int d) {
    __shared__ Tile tile;
    const unsigned int down = (n + TILE_N - 1u) / TILE_N, across = (d + TILE_D - 1u) / TILE_D;
#if DOWN_FIRST
    const int first_row = blockIdx.x % down * TILE_N, first_col = blockIdx.x / down * TILE_D;
#else
    const int first_row = blockIdx.x / across * TILE_N, first_col = blockIdx.x % across * TILE_D;
#endif
    // Where a row begins between two vectors, elements are moved one by one.
    if (d % READ == 0 && kit::on_vectors<T, READ>(x))
        read<READ>(x, tile, first_row, first_col, n, d);
    else
        read<1>(x, tile, first_row, first_col, n, d);
    __syncthreads();
    if (n % WRITE == 0 && kit::on_vectors<T, WRITE>(out))
        write<WRITE>(out, tile, first_row, first_col, n, d);
    else
        write<1>(out, tile, first_row, first_col, n, d);
}
