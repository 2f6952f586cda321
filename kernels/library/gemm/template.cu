// A block computes BM x BN results from tiles of A and B, BK deep, in shared memory; a thread computes TM x TN of them in
// registers, in groups of four columns and four rows: the groups of neighbouring threads lie side by side, so that a warp
// reads whole runs of shared memory. Rows no vector divides, and what lies beyond the matrices, are read one by one.

#include "kit/tiles.cuh"
#include "kit/vectors.cuh"

#if SHARED_FLOAT
using S = float;  // converted once, on the way in
#else
using S = T;  // converted at every use, in half the space
#endif

using Quad = kit::Vector<S, 4>;

enum {
    ACROSS = BN / TN, DOWN = BM / TM, THREADS = ACROSS * DOWN,
    A_ROWS = TRANSPOSE_A ? BK : BM, A_STRIDE = (TRANSPOSE_A ? BM : BK) + PAD,
    B_STRIDE = BN + PAD,
    A_SIZE = A_ROWS * A_STRIDE, STAGE = A_SIZE + BK * B_STRIDE,
    A_VECTORS = BM * BK / VEC, B_VECTORS = BK * BN / VEC,
    A_LOADS = (A_VECTORS + THREADS - 1) / THREADS, B_LOADS = (B_VECTORS + THREADS - 1) / THREADS,
};

// Addresses come before what is written there: the other order takes more registers.
__device__ __forceinline__ void to_shared(S& to, T x) { to = x; }

// VEC elements of a row from `col` on, zero where the matrix has none.
__device__ __forceinline__ kit::Vector<T, VEC> fetch(const T* __restrict__ matrix, int row, int col, int rows, int cols,
                                                     bool vectors) {
    kit::Vector<T, VEC> pack;
    const T* from = matrix + (long long)row * cols + col;
    if (vectors && row < rows && col < cols) return *reinterpret_cast<const kit::Vector<T, VEC>*>(from);
#pragma unroll
    for (int e = 0; e < VEC; ++e) {
        pack.value[e] = T(0.0f);
        if (!vectors && row < rows && col + e < cols) pack.value[e] = from[e];
    }
    return pack;
}

// Where vector v of a tile lies: neighbouring threads take neighbouring vectors of a row.
__device__ __forceinline__ int a_row(int v) { return v / (BK / VEC); }
__device__ __forceinline__ int a_col(int v) { return v % (BK / VEC) * VEC; }
__device__ __forceinline__ int b_row(int v) { return v / (BN / VEC); }
__device__ __forceinline__ int b_col(int v) { return v % (BN / VEC) * VEC; }

__device__ __forceinline__ void put_row(S* to, const kit::Vector<T, VEC>& pack) {
#pragma unroll
    for (int q = 0; q < VEC / 4; ++q) {
        Quad quad;
#pragma unroll
        for (int e = 0; e < 4; ++e) quad.value[e] = pack.value[q * 4 + e];
        reinterpret_cast<Quad*>(to)[q] = quad;
    }
}

__device__ __forceinline__ void put_a(S* tile, int v, const kit::Vector<T, VEC>& pack) {
    if (A_VECTORS % THREADS != 0 && v >= A_VECTORS) return;
#if TRANSPOSE_A
#pragma unroll
    for (int e = 0; e < VEC; ++e) to_shared(tile[(a_col(v) + e) * A_STRIDE + a_row(v)], pack.value[e]);
#else
    put_row(tile + a_row(v) * A_STRIDE + a_col(v), pack);
#endif
}

__device__ __forceinline__ void put_b(S* tile, int v, const kit::Vector<T, VEC>& pack) {
    if (B_VECTORS % THREADS != 0 && v >= B_VECTORS) return;
    put_row(tile + A_SIZE + b_row(v) * B_STRIDE + b_col(v), pack);
}

__device__ __forceinline__ void multiply(const S* tile, int down, int across, float (&sum)[TM][TN]) {
#pragma unroll 8
    for (int i = 0; i < BK; ++i) {
        float x[TM], y[TN];
#pragma unroll
        for (int q = 0; q < TM / 4; ++q) {
            const int row = (q * DOWN + down) * 4;
#if TRANSPOSE_A
            const Quad quad = *reinterpret_cast<const Quad*>(tile + i * A_STRIDE + row);
#pragma unroll
            for (int e = 0; e < 4; ++e) x[q * 4 + e] = float(quad.value[e]);
#else
#pragma unroll
            for (int e = 0; e < 4; ++e) x[q * 4 + e] = float(tile[(row + e) * A_STRIDE + i]);
#endif
        }
#pragma unroll
        for (int q = 0; q < TN / 4; ++q) {
            const int col = (q * ACROSS + across) * 4;
            const Quad quad = *reinterpret_cast<const Quad*>(tile + A_SIZE + i * B_STRIDE + col);
#pragma unroll
            for (int e = 0; e < 4; ++e) y[q * 4 + e] = float(quad.value[e]);
        }
#pragma unroll
        for (int r = 0; r < TM; ++r)
#pragma unroll
            for (int s = 0; s < TN; ++s) sum[r][s] += x[r] * y[s];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c, int m, int n, int k) {
    extern __shared__ __align__(16) unsigned char memory[];
    S* shared = reinterpret_cast<S*>(memory);
    const int me = threadIdx.x, across = me % ACROSS, down = me / ACROSS;

    // Blocks go down groups of eight tile rows before they go across, so that blocks that run together share operands.
    const int tiles_m = (m + BM - 1) / BM, tiles_n = (n + BN - 1) / BN;
    const int group = blockIdx.x / (8 * tiles_n), within = blockIdx.x % (8 * tiles_n);
    const int height = min(8, tiles_m - group * 8);
    const int row0 = (group * 8 + within % height) * BM, col0 = within / height * BN;

    // The same answers in every thread: vectors need rows that start and end on one.
    constexpr int ALIGNMENT = kit::Vector<T, VEC>::PIECE;
    const bool a_vectors = k % VEC == 0 && reinterpret_cast<unsigned long long>(a) % ALIGNMENT == 0;
    const bool b_vectors = n % VEC == 0 && reinterpret_cast<unsigned long long>(b) % ALIGNMENT == 0;
    const bool c_vectors = n % 4 == 0 && reinterpret_cast<unsigned long long>(c) % sizeof(kit::Vector<T, 4>) == 0;

    float sum[TM][TN] = {};
#if STAGES == 1
    for (int start = 0; start < k; start += BK) {
        if (start > 0) __syncthreads();
#pragma unroll 4
        for (int i = 0; i < A_LOADS; ++i) {
            const int v = me + i * THREADS;
            put_a(shared, v, fetch(a, row0 + a_row(v), start + a_col(v), m, k, a_vectors));
        }
#pragma unroll 4
        for (int i = 0; i < B_LOADS; ++i) {
            const int v = me + i * THREADS;
            put_b(shared, v, fetch(b, start + b_row(v), col0 + b_col(v), k, n, b_vectors));
        }
        __syncthreads();
        multiply(shared, down, across, sum);
    }
#else
    // The next tile is on its way to registers while this one is multiplied, and goes to the other half of the memory.
    kit::Vector<T, VEC> next_a[A_LOADS], next_b[B_LOADS];
    S* now = shared;
    S* then = shared + STAGE;
    for (int start = -BK; start < k; start += BK) {
        const bool more = start + BK < k;
        if (more) {
#pragma unroll
            for (int i = 0; i < A_LOADS; ++i) {
                const int v = me + i * THREADS;
                next_a[i] = fetch(a, row0 + a_row(v), start + BK + a_col(v), m, k, a_vectors);
            }
#pragma unroll
            for (int i = 0; i < B_LOADS; ++i) {
                const int v = me + i * THREADS;
                next_b[i] = fetch(b, start + BK + b_row(v), col0 + b_col(v), k, n, b_vectors);
            }
        }
        if (start >= 0) multiply(now, down, across, sum);
        if (more) {
#pragma unroll
            for (int i = 0; i < A_LOADS; ++i) put_a(then, me + i * THREADS, next_a[i]);
#pragma unroll
            for (int i = 0; i < B_LOADS; ++i) put_b(then, me + i * THREADS, next_b[i]);
            __syncthreads();
        }
        S* swap = now;
        now = then;
        then = swap;
    }
#endif

#pragma unroll
    for (int r = 0; r < TM; ++r) {
        const int row = row0 + ((r / 4) * DOWN + down) * 4 + r % 4;
        if (row >= m) continue;
#pragma unroll
        for (int q = 0; q < TN / 4; ++q) {
            const int col = col0 + (q * ACROSS + across) * 4;
            T* to = c + (long long)row * n + col;
            kit::Vector<T, 4> out;
#pragma unroll
            for (int e = 0; e < 4; ++e) out.value[e] = T(sum[r][q * 4 + e]);
            if (c_vectors) {
                if (col < n) *reinterpret_cast<kit::Vector<T, 4>*>(to) = out;
            } else {
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    if (col + e < n) to[e] = out.value[e];
            }
        }
    }
}
