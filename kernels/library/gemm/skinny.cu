// Matrix multiplication where A has few rows, for 16-bit floats on compute capability 8.0 and later: B, which is nearly all
// that is moved, is read once.
//
// The product is made transposed, by mma.sync (m16n8k16, float accumulation; PTX ISA, "Warp-level matrix instructions"): 16
// columns of B are the rows of a product and 8 rows of A its columns, so that a single row of A wastes no more than it must.
// In a step a warp takes 32 rows of 64 columns of B, and each of its threads 8 rows of 8 columns: 16-byte copies into a ring
// of STAGES places in shared memory that belongs to the thread alone, so that nothing waits for other threads. A product's
// depth may be taken in any order if both factors have the same: a thread's 8 rows are those whose elements of A lie side by
// side, and its operands are put together from registers, without transposing through shared memory.
//
// A block computes BM x BN results; DEEP of its warps divide the depth among them, and so do, with SPLIT > 1, the blocks of a
// cluster. Sums of parts of the depth are added up in one order, so that results do not differ between launches.

#if T_IS_BFLOAT16
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#else
#define MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#endif

enum {
    ACROSS = BN / 64, WARPS = ACROSS * DEEP, THREADS = WARPS * 32,
    STEP = 32, PLACE_BYTES = STEP * 64 * 2,  // of a warp
    TILES = BM / 8, CHUNK = 8,
};

__device__ __forceinline__ void multiply(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    asm volatile(MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

extern "C" __global__ void
#if SPLIT > 1
__cluster_dims__(1, 1, SPLIT)
#endif
__launch_bounds__(THREADS, MIN_BLOCKS)
gemm(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c, int m, int n, int k) {
#if T_IS_FLOAT32
    plainly(a, b, c, m, n, k);
#else
    extern __shared__ __align__(128) char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, across = warp % ACROSS, deep = warp / ACROSS;
    // Blocks with the same columns follow each other.
    const int tiles_m = (m + BM - 1) / BM, row0 = blockIdx.x % tiles_m * BM, col0 = blockIdx.x / tiles_m * BN;
    const int col = col0 + across * 64 + lane / 4 * 8, down = lane % 4 * 8;  // the thread's columns, and its first row in a step
    char* const ring = shared + warp * (STAGES * PLACE_BYTES) + lane * 16;

    // The steps of this block, of which its warps take turns.
    const int steps = (k + STEP - 1) / STEP, share = (steps + SPLIT - 1) / SPLIT;
    const int begin = blockIdx.z * share, end = min(begin + share, steps);
    const int count = max(0, (end - begin - deep + DEEP - 1) / DEEP);
    const bool a_chunks = k % CHUNK == 0 && reinterpret_cast<unsigned long long>(a) % 16 == 0;
    const bool b_chunks = n % CHUNK == 0 && reinterpret_cast<unsigned long long>(b) % 16 == 0;

    const auto fetch = [&](int at) {
        const int depth = (begin + at * DEEP + deep) * STEP + down;
        char* place = ring + at % STAGES * PLACE_BYTES;
        if (b_chunks) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const bool valid = depth + i < k && col < n;
                copy_later(shared_address(place + i * 512), valid ? b + (long long)(depth + i) * n + col : b, valid);
            }
            return;
        }
#pragma unroll 1
        for (int i = 0; i < 8; ++i) {
            const T* from = b + (long long)(depth + i) * n + col;
            T values[8];
#pragma unroll
            for (int e = 0; e < 8; ++e) values[e] = depth + i < k && col + e < n ? from[e] : T(0.0f);
#pragma unroll
            for (int e = 0; e < 8; ++e) reinterpret_cast<T*>(place + i * 512)[e] = values[e];
        }
    };

    float acc[4][TILES][4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int i = 0; i < TILES; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[j][i][e] = 0.0f;

#pragma unroll 1
    for (int at = 0; at < STAGES - 1; ++at) {
        if (at < count) fetch(at);
        close_group();
    }
#pragma unroll 1
    for (int at = 0; at < count; ++at) {
        const int depth = (begin + at * DEEP + deep) * STEP + down;
        uint4 right[TILES];
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            // Rows beyond the last give results that nobody writes.
            const T* from = a + (long long)min(row0 + i * 8 + lane / 4, m - 1) * k + depth;
            right[i] = make_uint4(0, 0, 0, 0);
            if (a_chunks) {
                if (depth < k) right[i] = __ldg(reinterpret_cast<const uint4*>(from));
            } else {
                alignas(16) T values[8];
#pragma unroll
                for (int e = 0; e < 8; ++e) values[e] = depth + e < k ? from[e] : T(0.0f);
                right[i] = *reinterpret_cast<const uint4*>(values);
            }
        }
        wait_groups<STAGES - 2>();
        unsigned left[8][4];
        const char* place = ring + at % STAGES * PLACE_BYTES;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint4 word = *reinterpret_cast<const uint4*>(place + i * 512);
            left[i][0] = word.x, left[i][1] = word.y, left[i][2] = word.z, left[i][3] = word.w;
        }
        if (at + STAGES - 1 < count) fetch(at + STAGES - 1);
        close_group();
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                // Two columns of four rows become two operands of a product: a column's elements side by side.
                const unsigned a0 = __byte_perm(left[half * 4][j], left[half * 4 + 1][j], 0x5410);
                const unsigned a1 = __byte_perm(left[half * 4][j], left[half * 4 + 1][j], 0x7632);
                const unsigned a2 = __byte_perm(left[half * 4 + 2][j], left[half * 4 + 3][j], 0x5410);
                const unsigned a3 = __byte_perm(left[half * 4 + 2][j], left[half * 4 + 3][j], 0x7632);
#pragma unroll
                for (int i = 0; i < TILES; ++i)
                    multiply(acc[j][i], a0, a1, a2, a3, half == 0 ? right[i].x : right[i].z, half == 0 ? right[i].y : right[i].w);
            }
    }

    // Sums of parts of the depth, BM x BN floats of each.
    wait_groups<0>();
    __syncthreads();
    float* const sums = reinterpret_cast<float*>(shared);
#pragma unroll
    for (int i = 0; i < TILES; ++i)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            float* to = sums + (deep * BM + i * 8 + lane % 4 * 2 + odd) * BN + across * 64 + lane / 4 * 8;
#pragma unroll
            for (int j = 0; j < 4; j += 2)
                *reinterpret_cast<float4*>(to + j * 2) =
                    make_float4(acc[j][i][odd], acc[j][i][odd + 2], acc[j + 1][i][odd], acc[j + 1][i][odd + 2]);
        }
    __syncthreads();
    const int pairs = min((int)BM, m - row0) * BN / 2;
    const auto sum_of_warps = [&](int pair) {
        float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int part = 0; part < DEEP; ++part) {
            const float2 there = reinterpret_cast<const float2*>(sums + part * BM * BN)[pair];
            sum.x += there.x;
            sum.y += there.y;
        }
        return sum;
    };
#if SPLIT > 1
    for (int pair = threadIdx.x; pair < pairs; pair += THREADS) reinterpret_cast<float2*>(sums)[pair] = sum_of_warps(pair);
    meet_cluster();
    for (int pair = blockIdx.z * THREADS + threadIdx.x; pair < pairs; pair += SPLIT * THREADS) {
        float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int rank = 0; rank < SPLIT; ++rank) {
            const float2 there = read_from(shared_address(sums + pair * 2), rank);
            sum.x += there.x;
            sum.y += there.y;
        }
        write(c, row0 + pair * 2 / BN, col0 + pair * 2 % BN, m, n, sum.x, sum.y);
    }
    meet_cluster();  // others may still read what is here
#else
    for (int pair = threadIdx.x; pair < pairs; pair += THREADS) {
        const float2 sum = sum_of_warps(pair);
        write(c, row0 + pair * 2 / BN, col0 + pair * 2 % BN, m, n, sum.x, sum.y);
    }
#endif
#endif
}
