// A product of few rows on the tensor cores by warp-wide products (mma.sync, m16n8k16, float accumulation; PTX ISA,
// "Warp-level matrix instructions"), for 16-bit floats on compute capability 8.0 and later.
//
// A warp takes 8 VEC columns of B, 32 rows of it at a time: lane 4 g + t copies columns g VEC to g VEC + VEC of rows 8 t to
// 8 t + 8. Each thread copies what it multiplies itself, STAGES - 1 such pieces ahead, into places that no other reads: warps
// never wait for each other before their sums meet. In which order a product takes columns and depth is free, as long as both
// factors agree: product j of a piece takes column j of each thread's VEC, and pairs of rows become pairs in a register.
// SLICES warps and a cluster of SPLIT blocks divide the depth, a piece at a time in turn, and add up what they have at the end.

#include "kit/clusters.cuh"
#include "kit/copies.cuh"
#include "kit/fragments.cuh"

enum {
    DEEP = 32,
    WIDE = 8 * VEC, BN = WIDE * ACROSS,  // columns of a warp, and of a block
    THREADS = ACROSS * SLICES * 32,
    TILES = BM / 16,
    PLACE = VEC * 2, STAGE_BYTES = 8 * 32 * PLACE,
};

#if T_IS_FLOAT32 || __CUDA_ARCH__ < 800
// Tensor cores round float32 to 10 bits of mantissa, and older ones have no products this deep: such a product is made on the
// ordinary units. Lane 4 g + t takes rows t, t + 4, ... of B and the same columns as above; blocks of a cluster take rows of C
// in turn.
__device__ __forceinline__ void plainly(
    const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c, int row0, int col0, int m, int n, int k, float* sums
) {
    enum { ROWS = 8 };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slice = warp / ACROSS;
    const int within = warp % ACROSS * WIDE + lane / 4 * VEC, col = col0 + within;
    for (int first = row0 + blockIdx.z * ROWS; first < min(row0 + BM, m); first += SPLIT * ROWS) {
        float acc[ROWS][VEC];
        const T* from[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            from[r] = a + (long long)min(first + r, m - 1) * k;
#pragma unroll
            for (int v = 0; v < VEC; ++v) acc[r][v] = 0.0f;
        }
#pragma unroll 2
        for (int depth = slice * 4 + lane % 4; depth < k; depth += SLICES * 4) {
            float right[VEC];
#pragma unroll
            for (int v = 0; v < VEC; ++v) right[v] = col + v < n ? float(b[(long long)depth * n + col + v]) : 0.0f;
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const float left = float(from[r][depth]);
#pragma unroll
                for (int v = 0; v < VEC; ++v) acc[r][v] += left * right[v];
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int v = 0; v < VEC; ++v) {
                acc[r][v] += __shfl_xor_sync(0xffffffffu, acc[r][v], 1);
                acc[r][v] += __shfl_xor_sync(0xffffffffu, acc[r][v], 2);
                if (lane % 4 == 0) sums[(slice * ROWS + r) * BN + within + v] = acc[r][v];
            }
        __syncthreads();
        for (int at = threadIdx.x; at < ROWS * BN; at += THREADS) {
            const int row = first + at / BN, to = col0 + at % BN;
            float sum = 0.0f;
#pragma unroll
            for (int other = 0; other < SLICES; ++other) sum += sums[other * ROWS * BN + at];
            if (row < m && to < n) c[(long long)row * n + to] = T(sum);
        }
        __syncthreads();
    }
}
#else
// 8 elements of a row of A from `depth` on, zeros beyond it. chunks: every row starts and ends on 16 bytes.
__device__ __forceinline__ uint4 left_of(const T* __restrict__ a, int row, int depth, int m, int k, bool chunks) {
    if (row >= m || depth >= k) return make_uint4(0, 0, 0, 0);
    const T* from = a + (long long)row * k + depth;
    if (chunks) return *reinterpret_cast<const uint4*>(from);
    alignas(16) T values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = depth + i < k ? from[i] : T(0.0f);
    return *reinterpret_cast<const uint4*>(values);
}

// The first of four neighbouring results of group `group` of a lane: row and column within a warp's.
__device__ __forceinline__ int2 where(int group, int lane) {
    const int quarter = group % (VEC / 4), pair = group / (VEC / 4) % 2, rows = group / (VEC / 4) / 2;
    return make_int2(rows * 8 + lane / 4, (lane % 4 * 2 + pair) * VEC + quarter * 4);
}

__device__ __forceinline__ float4 plus(float4 x, float4 y) {
    return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

__device__ __forceinline__ void write(T* __restrict__ c, int row, int col, int m, int n, float4 x) {
    if (row >= m || col >= n) return;
    T* to = c + (long long)row * n + col;
    alignas(8) T four[4] = {T(x.x), T(x.y), T(x.z), T(x.w)};
    if (n % 4 == 0 && reinterpret_cast<unsigned long long>(c) % 8 == 0) {
        *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(four);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (col + i < n) to[i] = four[i];
}
#endif

extern "C" __global__ void
#if SPLIT > 1
__cluster_dims__(1, 1, SPLIT)
#endif
__launch_bounds__(THREADS, 1)
gemm(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c, int m, int n, int k) {
    extern __shared__ float4 shared[];
    const int high = (m + BM - 1) / BM;
    const int row0 = blockIdx.x % high * BM, col0 = blockIdx.x / high * BN;
#if T_IS_FLOAT32 || __CUDA_ARCH__ < 800
    plainly(a, b, c, row0, col0, m, n, k, reinterpret_cast<float*>(shared));
#else
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int across = warp % ACROSS, slice = warp / ACROSS;
    const int col = col0 + across * WIDE + g * VEC;  // the first of this thread's columns
    const bool a_chunks = k % 8 == 0 && reinterpret_cast<unsigned long long>(a) % 16 == 0;
    const bool b_chunks = n % VEC == 0 && reinterpret_cast<unsigned long long>(b) % PLACE == 0;

    // Pieces of the depth: this warp's are `first`, `first` + SLICES * SPLIT, and so on.
    const int pieces = (k + DEEP - 1) / DEEP, first = blockIdx.z * SLICES + slice;
    const int count = first < pieces ? (pieces - first - 1) / (SLICES * SPLIT) + 1 : 0;
    const unsigned own = kit::shared_address(shared) + warp * STAGES * STAGE_BYTES + lane * PLACE;
    const auto depth_of = [&](int piece) { return (first + piece * (SLICES * SPLIT)) * DEEP + t * 8; };

    const auto fetch_b = [&](int piece, int stage) {
        const int depth = depth_of(piece);
        const unsigned to = own + stage * STAGE_BYTES;
        const T* from = b + (long long)depth * n + col;
        if (b_chunks) {
#pragma unroll
            for (int r = 0; r < 8; ++r) {
                const bool valid = depth + r < k && col < n;
                kit::copy_later<PLACE>(to + r * 32 * PLACE, valid ? from + (long long)r * n : b, valid);
            }
            return;
        }
#pragma unroll 2
        for (int r = 0; r < 8; ++r)
#pragma unroll
            for (int v = 0; v < VEC; ++v) {
                const T value = depth + r < k && col + v < n ? from[(long long)r * n + v] : T(0.0f);
                kit::write_own(to + r * 32 * PLACE + v * 2, reinterpret_cast<const unsigned short&>(value));
            }
    };
    const auto fetch_a = [&](uint4 (&left)[TILES][2], int piece) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                left[tile][half] = left_of(a, row0 + tile * 16 + half * 8 + g, depth_of(piece), m, k, a_chunks);
    };

    float acc[TILES][VEC][4];
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int j = 0; j < VEC; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[tile][j][e] = 0.0f;

#pragma unroll 1
    for (int piece = 0; piece < STAGES - 1; ++piece) {
        if (piece < count) fetch_b(piece, piece);
        kit::close_group();
    }
    uint4 next[TILES][2];
    if (count > 0) fetch_a(next, 0);
    int stage = 0;
#pragma unroll 1
    for (int piece = 0; piece < count; ++piece) {
        uint4 left[TILES][2];
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int half = 0; half < 2; ++half) left[tile][half] = next[tile][half];
        if (piece + 1 < count) fetch_a(next, piece + 1);
        // The place of the piece before is free: only this thread has read it.
        if (piece + STAGES - 1 < count) fetch_b(piece + STAGES - 1, stage == 0 ? STAGES - 1 : stage - 1);
        kit::close_group();
        kit::wait_groups<STAGES - 1>();
        const unsigned from = own + stage * STAGE_BYTES;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            unsigned rows[4][VEC / 2];
#pragma unroll
            for (int r = 0; r < 4; ++r) kit::read_own(rows[r], from + (half * 4 + r) * 32 * PLACE);
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                const unsigned which = j % 2 == 0 ? 0x5410 : 0x7632;
                const unsigned b0 = __byte_perm(rows[0][j / 2], rows[1][j / 2], which);
                const unsigned b1 = __byte_perm(rows[2][j / 2], rows[3][j / 2], which);
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile) {
                    const uint4 upper = left[tile][0], lower = left[tile][1];
                    if (half == 0)
                        kit::multiply<T>(acc[tile][j], {upper.x, lower.x, upper.y, lower.y}, b0, b1);
                    else
                        kit::multiply<T>(acc[tile][j], {upper.z, lower.z, upper.w, lower.w}, b0, b1);
                }
            }
        }
        if (++stage == STAGES) stage = 0;
    }

    // A thread's results in groups of four neighbouring columns.
    enum { GROUPS = TILES * VEC };
    const auto group_of = [&](int group) {
        const int quarter = group % (VEC / 4), pair = group / (VEC / 4) % 2, rows = group / (VEC / 4) / 2;
        const auto& from = acc[rows / 2];
        const int e = rows % 2 * 2 + pair, j = quarter * 4;
        return make_float4(from[j][e], from[j + 1][e], from[j + 2][e], from[j + 3][e]);
    };
#if SLICES > 1 || SPLIT > 1
    // Sums of parts of the depth meet in shared memory: a group of a lane lies at the same place for every part.
    enum { ALL = ACROSS * GROUPS * 32 };
    kit::wait_groups<0>();
    __syncthreads();
#pragma unroll
    for (int group = 0; group < GROUPS; ++group)
        shared[slice * ALL + (across * GROUPS + group) * 32 + lane] = group_of(group);
    __syncthreads();
    const auto sum_of = [&](int at) {
        float4 sum = shared[at];
#pragma unroll
        for (int other = 1; other < SLICES; ++other) sum = plus(sum, shared[other * ALL + at]);
        return sum;
    };
    const auto write_at = [&](int at, float4 sum) {
        const int2 place = where(at / 32 % GROUPS, at % 32);
        write(c, row0 + place.x, col0 + at / 32 / GROUPS * WIDE + place.y, m, n, sum);
    };
#if SPLIT > 1
    for (int at = threadIdx.x; at < ALL; at += THREADS) shared[at] = sum_of(at);
    kit::meet_cluster();
    // Each block of the cluster finishes its part of the results.
    for (int at = blockIdx.z * THREADS + threadIdx.x; at < ALL; at += SPLIT * THREADS) {
        float4 sum = kit::read_from<float4>(kit::shared_address(shared + at), 0);
#pragma unroll
        for (int rank = 1; rank < SPLIT; ++rank) sum = plus(sum, kit::read_from<float4>(kit::shared_address(shared + at), rank));
        write_at(at, sum);
    }
    kit::meet_cluster();  // others may still read what is here
#else
    for (int at = threadIdx.x; at < ALL; at += THREADS) write_at(at, sum_of(at));
#endif
#else
#pragma unroll
    for (int group = 0; group < GROUPS; ++group) {
        const int2 place = where(group, lane);
        write(c, row0 + place.x, col0 + across * WIDE + place.y, m, n, group_of(group));
    }
#endif
#endif
}
