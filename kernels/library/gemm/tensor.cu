// Matrix multiplication on the tensor cores by warp-wide products (mma.sync, m16n8k16, float accumulation; PTX ISA,
// "Warp-level matrix instructions"), for 16-bit floats on compute capability 8.0 and later.
//
// A block computes BM x BN results. Tiles of A and B, BK deep, arrive in shared memory by asynchronous copies, STAGES - 1
// tiles ahead of the products. Warps divide the block's results into WM x WN pieces, and, with SLICES > 1, each tile's depth
// among several warps. With SPLIT > 1 a cluster of blocks divides the whole depth (compute capability 9.0) and adds up what
// its blocks have in each other's shared memory. Neighbouring 16-byte chunks of shared memory are exchanged by row, so that
// the eight rows that a matrix load reads lie in different banks.

#include "kit/clusters.cuh"
#include "kit/copies.cuh"
#include "kit/fragments.cuh"
#include "kit/tiles.cuh"

enum {
    WARPS_M = BM / WM, WARPS_N = BN / WN, WARPS = WARPS_M * WARPS_N * SLICES, THREADS = WARPS * 32,
    CHUNK = 8,  // elements of 16 bytes
    A_CHUNKS = BK / CHUNK, B_CHUNKS = BN / CHUNK,  // of a row in shared memory
    A_BYTES = BM * BK * 2, B_BYTES = BK * BN * 2, STAGE_BYTES = A_BYTES + B_BYTES,
    TILES_M = WM / 16, TILES_N = WN / 8,  // products of a warp, and of one of its steps of 16 in depth
    STEPS = BK / 16,
};

// A tile of ROWS x COLS elements from (row0, col0) of a matrix of `rows` x `cols`. chunks: every row starts and ends on
// 16 bytes.
template <int ROWS, int COLS>
__device__ __forceinline__ void fetch(
    char* to, const T* __restrict__ matrix, int row0, int col0, int rows, int cols, bool chunks
) {
    constexpr int PER_ROW = COLS / CHUNK, ALL = ROWS * PER_ROW;
    if (chunks) {
#pragma unroll
        for (int first = 0; first < ALL; first += THREADS) {
            const int at = first + threadIdx.x;
            if (ALL % THREADS != 0 && at >= ALL) break;
            const int row = at / PER_ROW, chunk = at % PER_ROW, r = row0 + row, col = col0 + chunk * CHUNK;
            const bool valid = r < rows && col < cols;
            const unsigned target = kit::shared_address(to) + kit::swizzled<PER_ROW>(row, chunk);
            kit::copy_later<16>(target, matrix + (valid ? (long long)r * cols + col : 0), valid);
        }
        return;
    }
#pragma unroll 1
    for (int at = threadIdx.x; at < ROWS * COLS; at += THREADS) {
        const int row = at / COLS, col = at % COLS, r = row0 + row;
        T* target = reinterpret_cast<T*>(to + kit::swizzled<PER_ROW>(row, col / CHUNK)) + col % CHUNK;
        *target = r < rows && col0 + col < cols ? matrix[(long long)r * cols + col0 + col] : T(0.0f);
    }
}

extern "C" __global__ void
#if SPLIT > 1
__cluster_dims__(1, 1, SPLIT)
#endif
__launch_bounds__(THREADS, MIN_BLOCKS)
gemm(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c, int m, int n, int k) {
#if T_IS_FLOAT32
    kit::plainly<BM, BN, GROUP>(a, b, c, m, n, k);
#else
    extern __shared__ __align__(128) char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int slice = warp / (WARPS_M * WARPS_N);
    const int warp_m = warp % (WARPS_M * WARPS_N) / WARPS_N * WM, warp_n = warp % WARPS_N * WN;

    const int2 first = kit::tile_of<BM, BN, GROUP>(blockIdx.x, m, n);
    const int row0 = first.x, col0 = first.y;

    // This block's share of the depth, in whole tiles.
    const int tiles = (k + BK - 1) / BK;
    const int share = (tiles + SPLIT - 1) / SPLIT, begin = blockIdx.z * share, count = max(0, min(share, tiles - begin));
    const bool a_chunks = k % CHUNK == 0 && reinterpret_cast<unsigned long long>(a) % 16 == 0;
    const bool b_chunks = n % CHUNK == 0 && reinterpret_cast<unsigned long long>(b) % 16 == 0;

    const auto fetch_tile = [&](int tile) {
        char* stage = shared + tile % STAGES * STAGE_BYTES;
        const int depth = (begin + tile) * BK;
        fetch<BM, BK>(stage, a, row0, depth, m, k, a_chunks);
        fetch<BK, BN>(stage + A_BYTES, b, depth, col0, k, n, b_chunks);
    };

    float acc[TILES_M][TILES_N][4];
#pragma unroll
    for (int i = 0; i < TILES_M; ++i)
#pragma unroll
        for (int j = 0; j < TILES_N; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[i][j][e] = 0.0f;

#pragma unroll 1
    for (int tile = 0; tile < STAGES - 1; ++tile) {
        if (tile < count) fetch_tile(tile);
        kit::close_group();
    }
    for (int tile = 0; tile < count; ++tile) {
        kit::wait_groups<STAGES - 2>();
        __syncthreads();  // the tile is there for all, and nobody reads the stage that is filled next
        if (tile + STAGES - 1 < count) fetch_tile(tile + STAGES - 1);
        kit::close_group();
        const unsigned stage = kit::shared_address(shared) + tile % STAGES * STAGE_BYTES;
#pragma unroll
        for (int step = 0; step < STEPS / SLICES; ++step) {
            const int depth = (step * SLICES + slice) * 16;
            unsigned left[TILES_M][4], right[TILES_N][2];
#pragma unroll
            for (int i = 0; i < TILES_M; ++i)
                kit::load_a(left[i], stage + kit::swizzled<A_CHUNKS>(warp_m + i * 16 + lane % 16, depth / CHUNK + lane / 16));
#pragma unroll
            for (int j = 0; j < TILES_N; j += 2)
                kit::load_b(right[j][0], right[j][1], right[j + 1][0], right[j + 1][1],
                       stage + A_BYTES + kit::swizzled<B_CHUNKS>(depth + lane % 16, (warp_n + j * 8) / CHUNK + lane / 16));
#pragma unroll
            for (int i = 0; i < TILES_M; ++i)
#pragma unroll
                for (int j = 0; j < TILES_N; ++j) kit::multiply<T>(acc[i][j], left[i], right[j][0], right[j][1]);
        }
    }

#if SLICES > 1 || SPLIT > 1
    // Sums of parts of the depth meet in shared memory, as BM x BN floats.
    kit::wait_groups<0>();
    float* sums = reinterpret_cast<float*>(shared);
    const auto at = [&](int i, int j, int half) {
        return sums + (warp_m + i * 16 + half * 8 + lane / 4) * BN + warp_n + j * 8 + lane % 4 * 2;
    };
#pragma unroll 1
    for (int turn = 0; turn < SLICES; ++turn) {
        __syncthreads();
        if (slice != turn) continue;
#pragma unroll
        for (int i = 0; i < TILES_M; ++i)
#pragma unroll
            for (int j = 0; j < TILES_N; ++j)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float2* sum = reinterpret_cast<float2*>(at(i, j, half));
                    const float2 before = turn > 0 ? *sum : make_float2(0.0f, 0.0f);
                    *sum = make_float2(before.x + acc[i][j][half * 2], before.y + acc[i][j][half * 2 + 1]);
                }
    }
#if SPLIT > 1
    kit::meet_cluster();
    // Each block of the cluster finishes its part of the results.
    for (int pair = blockIdx.z * THREADS + threadIdx.x; pair < BM * BN / 2; pair += SPLIT * THREADS) {
        float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int rank = 0; rank < SPLIT; ++rank) {
            const float2 part = kit::read_from<float2>(kit::shared_address(sums + pair * 2), rank);
            sum.x += part.x;
            sum.y += part.y;
        }
        kit::write_pair(c, row0 + pair * 2 / BN, col0 + pair * 2 % BN, m, n, sum.x, sum.y);
    }
    kit::meet_cluster();  // others may still read what is here
#else
    __syncthreads();
    for (int pair = threadIdx.x; pair < BM * BN / 2; pair += THREADS)
        kit::write_pair(c, row0 + pair * 2 / BN, col0 + pair * 2 % BN, m, n, sums[pair * 2], sums[pair * 2 + 1]);
#endif
#else
#pragma unroll
    for (int i = 0; i < TILES_M; ++i)
#pragma unroll
        for (int j = 0; j < TILES_N; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                kit::write_pair(c, row0 + warp_m + i * 16 + half * 8 + lane / 4, col0 + warp_n + j * 8 + lane % 4 * 2, m, n,
                      acc[i][j][half * 2], acc[i][j][half * 2 + 1]);
#endif
#endif
}
