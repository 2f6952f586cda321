// Matrix multiplication by products of whole warpgroups (wgmma, float accumulation; PTX ISA, "Asynchronous warpgroup level
// matrix instructions"), for 16-bit floats on compute capability 9.0.
//
// A block computes BM x BN results with DOWN x ACROSS warpgroups of 128 threads. Tiles of A and B, BK deep, arrive in shared
// memory by asynchronous copies, STAGES - 1 tiles ahead; the products read both factors from there and run on while the
// threads start the copies of a later tile. Both factors lie in slabs whose rows are 128 bytes: 64 elements in depth of each
// row of A, 64 columns of each row of B. In a row, 16-byte chunks are exchanged by the row's last three bits, which is the
// layout that the instruction calls a 128-byte swizzle. With SPLIT > 1 a cluster of blocks divides the depth.

enum {
    ROWS = BM / DOWN, COLS = BN / ACROSS,  // of a warpgroup
    THREADS = DOWN * ACROSS * 128, CHUNK = 8, SLAB = 64,
    A_SLAB = BM * 128, B_SLAB = BK * 128,  // bytes
    A_BYTES = BK / SLAB * A_SLAB, STAGE_BYTES = A_BYTES + BN / SLAB * B_SLAB,
    PARTS = ROWS / 64, VALUES = COLS / 2,  // products side by side, and the results that a thread holds of each
};

__device__ __forceinline__ int place(int row, int chunk) { return row * 128 + (chunk ^ (row & 7)) * 16; }

// Columns col0 to col0 + 64 of `HIGH` rows from row0 on, as a slab.
template <int HIGH>
__device__ __forceinline__ void fetch_slab(
    char* to, const T* __restrict__ matrix, int row0, int col0, int rows, int cols, bool chunks
) {
    constexpr int ALL = HIGH * SLAB / CHUNK;
    if (chunks) {
#pragma unroll
        for (int first = 0; first < ALL; first += THREADS) {
            const int at = first + threadIdx.x;
            if (ALL % THREADS != 0 && at >= ALL) break;
            const int row = at / 8, chunk = at % 8, r = row0 + row, col = col0 + chunk * CHUNK;
            const bool valid = r < rows && col < cols;
            copy_later(shared_address(to) + place(row, chunk), matrix + (valid ? (long long)r * cols + col : 0), valid);
        }
        return;
    }
#pragma unroll 1
    for (int at = threadIdx.x; at < HIGH * SLAB; at += THREADS) {
        const int row = at / SLAB, col = at % SLAB, r = row0 + row;
        T* target = reinterpret_cast<T*>(to + place(row, col / CHUNK)) + col % CHUNK;
        *target = r < rows && col0 + col < cols ? matrix[(long long)r * cols + col0 + col] : T(0.0f);
    }
}

// A matrix in shared memory as the instruction wants it described: address and two strides in units of 16 bytes, 128-byte
// swizzle. For A (its depth lies in a row) `stride` is from 8 rows to the next 8; for B (its columns lie in a row) `stride`
// is from 8 rows in depth to the next 8, and `leading` from 64 columns to the next 64.
__device__ __forceinline__ unsigned long long described(unsigned address, int leading, int stride) {
    return (unsigned long long)((address & 0x3ffff) >> 4) | (unsigned long long)(leading >> 4) << 16
        | (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}

#if T_IS_BFLOAT16
#define WIDTH(N) "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 "
#else
#define WIDTH(N) "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 "
#endif
#define FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(d, i) FOUR(d, i), FOUR(d, i + 4), FOUR(d, i + 8), FOUR(d, i + 12)
#define SIXTY_FOUR(d, i) SIXTEEN(d, i), SIXTEEN(d, i + 16), SIXTEEN(d, i + 32), SIXTEEN(d, i + 48)
// d += A B, 64 x COLS in a warpgroup, 16 deep; the last two operands say that B's columns lie in a row.
__device__ __forceinline__ void multiply(float (&d)[VALUES], unsigned long long a, unsigned long long b) {
#if BN / ACROSS == 64
    asm volatile(WIDTH(64)
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
        ", %32, %33, 1, 1, 1, 0, 1;\n" : SIXTEEN(d, 0), SIXTEEN(d, 16) : "l"(a), "l"(b));
#elif BN / ACROSS == 128
    asm volatile(WIDTH(128)
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
        ", %64, %65, 1, 1, 1, 0, 1;\n" : SIXTY_FOUR(d, 0) : "l"(a), "l"(b));
#else
    asm volatile(WIDTH(256)
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}"
        ", %128, %129, 1, 1, 1, 0, 1;\n" : SIXTY_FOUR(d, 0), SIXTY_FOUR(d, 64) : "l"(a), "l"(b));
#endif
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
    extern __shared__ char dynamic[];
    // The swizzle repeats every 1024 bytes, to which stages are aligned.
    char* shared = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
    const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
    const int group_row = group / ACROSS * ROWS, group_col = group % ACROSS * COLS;
    const int2 first = first_of_tile(m, n);
    const int row0 = first.x, col0 = first.y;

    // This block's share of the depth, in whole tiles.
    const int tiles = (k + BK - 1) / BK;
    const int share = (tiles + SPLIT - 1) / SPLIT, begin = blockIdx.z * share, count = max(0, min(share, tiles - begin));
    const bool a_chunks = k % CHUNK == 0 && reinterpret_cast<unsigned long long>(a) % 16 == 0;
    const bool b_chunks = n % CHUNK == 0 && reinterpret_cast<unsigned long long>(b) % 16 == 0;

    const auto fetch_tile = [&](int tile) {
        char* stage = shared + tile % STAGES * STAGE_BYTES;
        const int depth = (begin + tile) * BK;
#pragma unroll
        for (int s = 0; s < BK / SLAB; ++s)
            fetch_slab<BM>(stage + s * A_SLAB, a, row0, depth + s * SLAB, m, k, a_chunks);
#pragma unroll
        for (int s = 0; s < BN / SLAB; ++s)
            fetch_slab<BK>(stage + A_BYTES + s * B_SLAB, b, depth, col0 + s * SLAB, k, n, b_chunks);
    };

    float acc[PARTS][VALUES];
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int v = 0; v < VALUES; ++v) acc[part][v] = 0.0f;

#pragma unroll 1
    for (int tile = 0; tile < STAGES - 2; ++tile) {
        if (tile < count) fetch_tile(tile);
        close_group();
    }
#pragma unroll 1
    for (int tile = 0; tile < count; ++tile) {
        wait_groups<STAGES - 3>();
        // What copies and stores have written becomes visible to the products, which read by another path.
        asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
        __syncthreads();
        const unsigned stage = shared_address(shared) + tile % STAGES * STAGE_BYTES;
        asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
        for (int step = 0; step < BK / 16; ++step) {
            const unsigned left = stage + step / 4 * A_SLAB + group_row * 128 + step % 4 * 32;
            const unsigned right = stage + A_BYTES + group_col / SLAB * B_SLAB + step * 16 * 128;
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
                multiply(acc[part], described(left + part * 64 * 128, 16, 1024), described(right, B_SLAB, 1024));
        }
        asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
        // One tile's products may be under way: the stage of the one before is free once all have passed the barrier above
        // of the next tile, so copies go two tiles behind what is multiplied.
        if (tile + STAGES - 2 < count) fetch_tile(tile + STAGES - 2);
        close_group();
        asm volatile("wgmma.wait_group.sync.aligned 1;\n" ::: "memory");
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
    wait_groups<0>();

    // Where a thread's results lie: four neighbouring threads share a row's 8 columns, a warp 16 rows.
    const int row = group_row + threadIdx.x % 128 / 32 * 16 + lane / 4, col = group_col + lane % 4 * 2;
#if SPLIT > 1
    float* sums = reinterpret_cast<float*>(dynamic);
    __syncthreads();
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int v = 0; v < VALUES; v += 2)
            *reinterpret_cast<float2*>(sums + (row + part * 64 + v / 2 % 2 * 8) * BN + col + v / 4 * 8) =
                make_float2(acc[part][v], acc[part][v + 1]);
    meet_cluster();
    for (int pair = blockIdx.z * THREADS + threadIdx.x; pair < BM * BN / 2; pair += SPLIT * THREADS) {
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
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
#pragma unroll
        for (int v = 0; v < VALUES; v += 2)
            write(c, row0 + row + part * 64 + v / 2 % 2 * 8, col0 + col + v / 4 * 8, m, n, acc[part][v], acc[part][v + 1]);
#endif
#endif
}
