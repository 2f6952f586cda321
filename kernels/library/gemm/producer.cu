// Matrix multiplication by products of whole warpgroups (wgmma, float accumulation; PTX ISA, "Asynchronous warpgroup level
// matrix instructions"), for 16-bit floats on compute capability 9.0. One warpgroup copies, the others multiply.
//
// Tiles of A and B, 64 deep, arrive in a ring of STAGES places in shared memory by tensor copies (cp.async.bulk.tensor),
// which one thread starts; barriers in shared memory (mbarrier) say when a tile is there and when its place is free again.
// The copying warpgroup gives registers to the others (setmaxnreg). Both factors lie in slabs whose rows are 128 bytes, with
// 16-byte chunks exchanged by the row's last three bits: the 128-byte swizzle of copies and products alike. With PAIR = 2,
// two blocks of a cluster, one below the other, copy half of what both need of B to each other. With SPLIT > 1 a cluster of
// blocks divides the depth. A block goes on to a further tile of C while its warpgroup that copies is ahead.
//
// A tensor copy needs a description of the matrix in global memory, which a kernel without help from its caller has to make
// itself (tensormap.replace). It lies in the last tile of C that a cluster computes, which is overwritten by results when
// nothing is copied any more: no memory beside the arguments is used, and nothing outlasts the launch. Rows that are no
// multiple of 16 bytes, and tiles of C too small for it, are copied an element at a time.

enum {
    ROWS = BM / DOWN, COLS = BN / ACROSS,  // of a warpgroup that multiplies
    GROUPS = DOWN * ACROSS, MULTIPLIERS = GROUPS * 128, THREADS = MULTIPLIERS + 128,
    BK = 64, CHUNK = 8, SLAB = 64, SLABS = BN / SLAB,
    A_BYTES = BM * 128, B_SLAB = BK * 128, STAGE_BYTES = A_BYTES + SLABS * B_SLAB,
    PARTS = ROWS / 64, VALUES = COLS / 2,  // products side by side, and the results that a thread holds of each
    CLUSTER = PAIR * SPLIT, MAP_BYTES = 128,
    // Registers of a thread at the start, then of one that copies, and of one that multiplies (multiples of 8).
    CAP = 65536 / MIN_BLOCKS / THREADS / 8 * 8, COPY_REGISTERS = 72,
    MULTIPLY_REGISTERS = (CAP * (GROUPS + 1) - COPY_REGISTERS) / GROUPS / 8 * 8,
};

__device__ __forceinline__ void start_barrier(unsigned barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void wait_for(unsigned barrier, int parity) {
    unsigned done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (done == 0);
}
__device__ __forceinline__ void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void arrive_at(unsigned barrier, int rank) {
    asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier), "r"(rank) : "memory");
}
__device__ __forceinline__ void expect(unsigned barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void all_meet() {
#if PAIR * SPLIT > 1
    asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;\n" ::: "memory");
#else
    __syncthreads();
#endif
}

// The box of a described matrix whose first element is (row, col) to shared memory; `barrier` counts its bytes.
__device__ __forceinline__ void copy_box(unsigned to, const void* map, int row, int col, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];\n"
                 ::"r"(to), "l"(map), "r"(col), "r"(row), "r"(barrier) : "memory");
}
// The same into the same places of both blocks of a cluster.
__device__ __forceinline__ void copy_box_to_both(unsigned to, const void* map, int row, int col, unsigned barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3}], [%4], %5;\n"
                 ::"r"(to), "l"(map), "r"(col), "r"(row), "r"(barrier), "h"((unsigned short)3) : "memory");
}

// Describes a row-major matrix of 16-bit floats in 128 bytes of shared memory that are zero: boxes of `high` rows and 64
// columns, zeros beyond the matrix. (PTX ISA, "tensormap.replace"; encodings of its "Tensor-map fields".)
__device__ __forceinline__ void describe(unsigned map, const T* matrix, int rows, int cols, int high) {
    asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;\n" ::"r"(map), "l"(matrix) : "memory");
    asm volatile("tensormap.replace.tile.rank.shared::cta.b1024.b32 [%0], 1;\n" ::"r"(map) : "memory");
#define SET(field, type, at, value, kind) \
    asm volatile("tensormap.replace.tile." field ".shared::cta.b1024." type " [%0], " at ", %1;\n" \
                 ::"r"(map), kind(value) : "memory")
    SET("box_dim", "b32", "0", (int)SLAB, "r");
    SET("box_dim", "b32", "1", high, "r");
    SET("global_dim", "b32", "0", cols, "r");
    SET("global_dim", "b32", "1", rows, "r");
    SET("global_stride", "b64", "0", (long long)cols * 2, "l");
    SET("element_stride", "b32", "0", 1, "r");
    SET("element_stride", "b32", "1", 1, "r");
#undef SET
#define SET(field, code) \
    asm volatile("tensormap.replace.tile." field ".shared::cta.b1024.b32 [%0], " code ";\n" ::"r"(map) : "memory")
#if T_IS_BFLOAT16
    SET("elemtype", "0xa");
#else
    SET("elemtype", "0x6");
#endif
    SET("interleave_layout", "0x0");
    SET("swizzle_mode", "0x3");
    SET("fill_mode", "0x0");
#undef SET
}
// What was described, in global memory, for copies that a thread starts which has acquired it.
__device__ __forceinline__ void publish(void* to, unsigned map) {
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;\n"
                 ::"l"(to), "r"(map) : "memory");
}
__device__ __forceinline__ void acquire(const void* map) {
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;\n" ::"l"(map) : "memory");
}

// Columns col0 to col0 + 64 of `high` rows from row0 on, as a slab, an element at a time.
__device__ __forceinline__ void fetch_slab(
    char* to, const T* __restrict__ matrix, int row0, int col0, int high, int rows, int cols, int thread
) {
    const int col = thread % SLAB, first = thread / SLAB;
    const T* from = matrix + (long long)(row0 + first) * cols + col0 + col;
    const int there = col0 + col < cols ? rows - row0 : 0;  // rows of this column that the matrix has
    char* const place = to + col % CHUNK * 2;
#pragma unroll 4
    for (int row = first; row < high; row += 2, from += 2 * cols)
        *reinterpret_cast<T*>(place + row * 128 + (col / CHUNK ^ (row & 7)) * 16) = row < there ? *from : T(0.0f);
}

// A matrix in shared memory as the product wants it described: address and two strides in units of 16 bytes, 128-byte
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

// The tile of C that is `unit` of those of a block's place in its cluster: first row and column. Clusters go down GROUP tiles
// before they go right: what neighbours in time read stays in the last cache.
__device__ __forceinline__ int2 tile_of(int unit, int rank, int m, int n) {
    const int high_m = ((m + BM - 1) / BM + PAIR - 1) / PAIR, tiles_n = (n + BN - 1) / BN;
    const int band = unit / (GROUP * tiles_n), high = min(GROUP, high_m - band * GROUP), within = unit % (GROUP * tiles_n);
    return make_int2(((band * GROUP + within % high) * PAIR + rank) * BM, within / high * BN);
}

// Place `wanted` of 128 aligned bytes within a tile of C; null where it has none.
__device__ __forceinline__ char* place_in(T* c, int2 tile, int m, int n, int wanted) {
    const int width = min((int)BN, n - tile.y);
    for (int row = tile.x; row < min(tile.x + BM, m); ++row) {
        const unsigned long long begin = reinterpret_cast<unsigned long long>(c + (long long)row * n + tile.y);
        const unsigned long long first = (begin + MAP_BYTES - 1) / MAP_BYTES * MAP_BYTES, end = begin + width * 2;
        const int places = first < end ? int((end - first) / MAP_BYTES) : 0;
        if (wanted < places) return reinterpret_cast<char*>(first) + wanted * MAP_BYTES;
        wanted -= places;
    }
    return nullptr;
}

__device__ __forceinline__ unsigned packed(float x, float y) {
    alignas(4) T pair[2] = {T(x), T(y)};
    return *reinterpret_cast<const unsigned*>(pair);
}

// 32 columns of one row, of which each of four neighbouring threads has two of every eight: each stores 16 bytes.
__device__ __forceinline__ void store_together(T* __restrict__ row, int col, int n, unsigned (&x)[4]) {
    const int lane = threadIdx.x % 4;
    const bool odd = lane & 1, upper = lane & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const unsigned got = __shfl_xor_sync(0xffffffff, odd ? x[i] : x[i + 1], 1);
        if (odd) x[i] = got; else x[i + 1] = got;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const unsigned got = __shfl_xor_sync(0xffffffff, upper ? x[i] : x[i + 2], 2);
        if (upper) x[i] = got; else x[i + 2] = got;
    }
    if (row != nullptr && col + lane * 8 < n)
        *reinterpret_cast<uint4*>(row + col + lane * 8) = make_uint4(x[0], x[1], x[2], x[3]);
}

extern "C" __global__ void
#if PAIR * SPLIT > 1
__cluster_dims__(PAIR, 1, SPLIT)
#endif
__launch_bounds__(THREADS, MIN_BLOCKS)
gemm(const T* __restrict__ a, const T* __restrict__ b, T* c, int m, int n, int k) {
    const int units = ((m + BM - 1) / BM + PAIR - 1) / PAIR * ((n + BN - 1) / BN);
    const int rank = blockIdx.x % PAIR, first_unit = blockIdx.x / PAIR, step_units = gridDim.x / PAIR;
#if T_IS_FLOAT32
    // Tensor cores round float32 to 10 bits of mantissa: such a product is made on the ordinary units, an element at a time.
    for (int unit = first_unit; unit < units; unit += step_units) {
        const int2 tile = tile_of(unit, rank, m, n);
        for (int at = threadIdx.x + blockIdx.z * THREADS; at < BM * BN; at += THREADS * SPLIT) {
            const int row = tile.x + at / BN, col = tile.y + at % BN;
            if (row >= m || col >= n) continue;
            float sum = 0.0f;
            for (int i = 0; i < k; ++i) sum += a[(long long)row * k + i] * b[(long long)i * n + col];
            c[(long long)row * n + col] = sum;
        }
    }
#else
    extern __shared__ char dynamic[];
    // The swizzle repeats every 1024 bytes, to which stages are aligned.
    char* shared = dynamic + (1024 - shared_address(dynamic) % 1024) % 1024;
    const unsigned stages = shared_address(shared), scratch = stages + STAGES * STAGE_BYTES;
    const unsigned full = scratch + 2 * MAP_BYTES, empty = full + STAGES * 8;  // barriers

    // This block's share of the depth, in whole tiles.
    const int tiles = (k + BK - 1) / BK;
    const int share = (tiles + SPLIT - 1) / SPLIT, begin = blockIdx.z * share, count = max(0, min(share, tiles - begin));

    // Where the descriptions of A and B lie: in the last tile of C of the cluster's first block.
    const int2 last = tile_of(first_unit + (units - 1 - first_unit) / step_units * step_units, 0, m, n);
    char* const map_a = place_in(c, last, m, n, 0);
    char* const map_b = place_in(c, last, m, n, 1);
    const bool boxes = k % CHUNK == 0 && n % CHUNK == 0 && map_b != nullptr && reinterpret_cast<unsigned long long>(a) % 16 == 0
        && reinterpret_cast<unsigned long long>(b) % 16 == 0;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            start_barrier(full + stage * 8, boxes ? 1 : 128);
            start_barrier(empty + stage * 8, GROUPS * 4 * PAIR);
        }
        asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
    }
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (boxes && warp == GROUPS * 4 && rank == 0 && blockIdx.z == 0) {
        for (int at = lane; at < 2 * MAP_BYTES / 4; at += 32)
            *reinterpret_cast<unsigned*>(shared + STAGES * STAGE_BYTES + at * 4) = 0;
        __syncwarp();
        if (lane == 0) {
            describe(scratch, a, m, k, BM);
            describe(scratch + MAP_BYTES, b, k, n, BK);
        }
        __syncwarp();
        publish(map_a, scratch);
        publish(map_b, scratch + MAP_BYTES);
    }
    all_meet();

    if (warp >= GROUPS * 4) {
#if DOWN * ACROSS > 1
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"((int)COPY_REGISTERS));
#endif
        const int thread = threadIdx.x - MULTIPLIERS;
        if (boxes && thread == 0) {
            acquire(map_a);
            acquire(map_b);
            int stage = 0, parity = 1;
            for (int unit = first_unit; unit < units; unit += step_units) {
                const int2 tile = tile_of(unit, rank, m, n);
                for (int at = 0; at < count; ++at) {
                    const int depth = (begin + at) * BK;
                    const unsigned to = stages + stage * STAGE_BYTES, barrier = full + stage * 8;
                    wait_for(empty + stage * 8, parity);
                    expect(barrier, STAGE_BYTES);
                    copy_box(to, map_a, tile.x, depth, barrier);
#pragma unroll
                    for (int i = 0; i < SLABS / PAIR; ++i) {
#if PAIR > 1
                        const int slab = rank * (SLABS / PAIR) + i;
                        copy_box_to_both(to + A_BYTES + slab * B_SLAB, map_b, depth, tile.y + slab * SLAB, barrier);
#else
                        copy_box(to + A_BYTES + i * B_SLAB, map_b, depth, tile.y + i * SLAB, barrier);
#endif
                    }
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        }
        if (!boxes) {
            int stage = 0, parity = 1;
            for (int unit = first_unit; unit < units; unit += step_units) {
                const int2 tile = tile_of(unit, rank, m, n);
                for (int at = 0; at < count; ++at) {
                    const int depth = (begin + at) * BK;
                    char* to = shared + stage * STAGE_BYTES;
                    wait_for(empty + stage * 8, parity);
                    fetch_slab(to, a, tile.x, depth, BM, m, k, thread);
#pragma unroll 1
                    for (int i = 0; i < SLABS; ++i)
                        fetch_slab(to + A_BYTES + i * B_SLAB, b, depth, tile.y + i * SLAB, BK, k, n, thread);
                    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
                    arrive(full + stage * 8);
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
        }
#if PAIR * SPLIT > 1
        __syncwarp();
        all_meet();
#endif
#if SPLIT > 1
        all_meet();
#endif
    } else {
#if DOWN * ACROSS > 1
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"((int)MULTIPLY_REGISTERS));
#endif
        const int group = warp / 4, group_row = group / ACROSS * ROWS, group_col = group % ACROSS * COLS;
        // Where a thread's results lie: four neighbouring threads share a row's 8 columns, a warp 16 rows.
        const int row = group_row + warp % 4 * 16 + lane / 4, col = group_col + lane % 4 * 2;
        const auto release = [&](int stage) {
#if PAIR > 1
            if (lane < PAIR) arrive_at(empty + stage * 8, lane);
#else
            if (lane == 0) arrive(empty + stage * 8);
#endif
        };
        int stage = 0, parity = 0;
        float acc[PARTS][VALUES];
        for (int unit = first_unit; unit < units; unit += step_units) {
            const int2 tile = tile_of(unit, rank, m, n);
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
#pragma unroll
                for (int v = 0; v < VALUES; ++v) acc[part][v] = 0.0f;
            int before = 0;
            for (int at = 0; at < count; ++at) {
                const unsigned left = stages + stage * STAGE_BYTES + group_row * 128;
                const unsigned right = stages + stage * STAGE_BYTES + A_BYTES + group_col / SLAB * B_SLAB;
                wait_for(full + stage * 8, parity);
                asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
                for (int step = 0; step < BK / 16; ++step)
#pragma unroll
                    for (int part = 0; part < PARTS; ++part)
                        multiply(acc[part], described(left + part * 64 * 128 + step * 32, 16, 1024),
                                 described(right + step * 16 * 128, B_SLAB, 1024));
                asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
                // The products of the tile before are done: its place is free.
                asm volatile("wgmma.wait_group.sync.aligned 1;\n" ::: "memory");
                if (at > 0) release(before);
                before = stage;
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
            if (count > 0) release(before);
#if SPLIT > 1
            float* sums = reinterpret_cast<float*>(shared);
            asm volatile("bar.sync 1, %0;\n" ::"n"((int)MULTIPLIERS) : "memory");  // all have multiplied what lies there
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
#pragma unroll
                for (int v = 0; v < VALUES; v += 2)
                    *reinterpret_cast<float2*>(sums + (row + part * 64 + v / 2 % 2 * 8) * BN + col + v / 4 * 8) =
                        make_float2(acc[part][v], acc[part][v + 1]);
            all_meet();
            for (int pair = blockIdx.z * MULTIPLIERS + threadIdx.x; pair < BM * BN / 2; pair += SPLIT * MULTIPLIERS) {
                float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
                for (int from = 0; from < SPLIT; ++from) {
                    const float2 there = read_from(shared_address(sums + pair * 2), from);
                    sum.x += there.x;
                    sum.y += there.y;
                }
                write(c, tile.x + pair * 2 / BN, tile.y + pair * 2 % BN, m, n, sum.x, sum.y);
            }
            all_meet();  // others may still read what is here
#else
#if PAIR > 1
            // The descriptions that both blocks copy by lie where the first now writes, and nobody leaves who is still sent to.
            if (unit + step_units >= units) all_meet();
#endif
            const bool wide = n % CHUNK == 0 && reinterpret_cast<unsigned long long>(c) % 16 == 0;
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int r = tile.x + row + part * 64 + half * 8;
                    T* const to = r < m ? c + (long long)r * n : nullptr;
                    if (wide) {
#pragma unroll
                        for (int v = half * 2; v < VALUES; v += 16) {
                            unsigned x[4];
#pragma unroll
                            for (int i = 0; i < 4; ++i) x[i] = packed(acc[part][v + i * 4], acc[part][v + i * 4 + 1]);
                            store_together(to, tile.y + group_col + v / 16 * 32, n, x);
                        }
                    } else {
#pragma unroll
                        for (int v = half * 2; v < VALUES; v += 4)
                            write(c, r, tile.y + col + v / 4 * 8, m, n, acc[part][v], acc[part][v + 1]);
                    }
                }
#endif
        }
    }
#endif
}
