// Matrix multiplication by products of whole warpgroups (wgmma, float accumulation; PTX ISA, "Asynchronous warpgroup level
// matrix instructions"), for 16-bit floats on compute capability 9.0. One warpgroup copies, the others multiply.
//
// Tiles of A and B, 64 deep, arrive in a ring of STAGES places in shared memory; barriers there (mbarrier) say when a tile has
// come and when its place is free again. The copying warpgroup gives registers to the others (setmaxnreg). Both factors lie in
// slabs whose rows are 128 bytes, with 16-byte chunks exchanged by the row's last three bits: the 128-byte swizzle of tensor
// copies and products alike. A block goes on to a further tile of C while its copies for that are under way. With SPLIT > 1 a
// cluster of blocks divides the depth, and each block adds up a part of the columns, which the others write into its memory.
//
// With MAPS, one thread for each factor starts tensor copies (cp.async.bulk.tensor). They need a description of the matrix in
// global memory, which a kernel without help from its caller has to make itself (tensormap.replace). It lies in the last tile
// of C that the block computes, which is overwritten by results when nothing is copied any more: no memory beside the
// arguments is used, and nothing outlasts the launch. Without MAPS, and where a tile of C is too small for that, all threads
// of the warpgroup copy 16 bytes at a time (cp.async), which starts sooner; rows that are no multiple of 16 bytes are copied
// an element at a time.

#include "kit/clusters.cuh"
#include "kit/tiles.cuh"
#include "kit/warpgroups.cuh"

#ifndef GROUP
#define GROUP 1  // where tiles of C lie in one row, or in two
#endif
enum {
    ROWS = BM / DOWN, COLS = BN / ACROSS,  // of a warpgroup that multiplies
    GROUPS = DOWN * ACROSS, MULTIPLIERS = GROUPS * 128, THREADS = MULTIPLIERS + 128,
    BK = 64, CHUNK = 8, SLAB = 64, SLABS = BN / SLAB,
    A_BYTES = BM * 128, B_SLAB = BK * 128, STAGE_BYTES = A_BYTES + SLABS * B_SLAB,
    PARTS = ROWS / 64, VALUES = COLS / 2,  // products side by side, and the results that a thread holds of each
    // Columns that a block of a cluster adds up, and the floats from row to row of them: rows begin in different banks.
    SHARE = BN / SPLIT, PITCH = SHARE + 8, SUM_BYTES = SPLIT > 1 ? SPLIT * BM * PITCH * 4 : 0,
    MAP_BYTES = 128,
    BEHIND = STAGES - 2,  // tiles under way; a place is given back one tile late
    // Registers of a thread at the start, then of one that copies, and of one that multiplies (multiples of 8).
    CAP = 65536 / MIN_BLOCKS / THREADS / 8 * 8, COPY_REGISTERS = 80,
    MULTIPLY_REGISTERS = (CAP * (GROUPS + 1) - COPY_REGISTERS) / GROUPS / 8 * 8,
};

#if MAPS
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
#endif

// Columns col0 to col0 + 64 of HIGH rows from row0 on, as a slab. chunks: every row starts and ends on 16 bytes.
template <int HIGH>
__device__ __forceinline__ void fetch_slab(
    char* to, const T* __restrict__ matrix, int row0, int col0, int rows, int cols, bool chunks, int thread
) {
    if (chunks) {
        const int chunk = thread % CHUNK, first = thread / CHUNK, col = col0 + chunk * CHUNK;
        const unsigned place = kit::shared_address(to) + first * 128 + (chunk ^ (first & 7)) * 16;
        const T* from = matrix + (long long)(row0 + first) * cols + col;
        const int there = col < cols ? rows - row0 : 0;  // rows of these columns that the matrix has
#pragma unroll 4
        for (int row = 0; row < HIGH; row += 16, from += 16ll * cols)
            kit::copy_later<16>(place + row * 128, first + row < there ? from : matrix, first + row < there);
        return;
    }
    const int col = thread % SLAB, first = thread / SLAB;
    const T* from = matrix + (long long)(row0 + first) * cols + col0 + col;
    const int there = col0 + col < cols ? rows - row0 : 0;
    char* const place = to + col % CHUNK * 2;
#pragma unroll 1
    for (int row = first; row < HIGH; row += 32, from += 32ll * cols) {
        T values[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) values[i] = row + i * 2 < there ? from[(long long)i * 2 * cols] : T(0.0f);
#pragma unroll
        for (int i = 0; i < 16; ++i)
            *reinterpret_cast<T*>(place + (row + i * 2) * 128 + (col / CHUNK ^ (row + i * 2 & 7)) * 16) = values[i];
    }
}

extern "C" __global__ void
#if SPLIT > 1
__cluster_dims__(1, 1, SPLIT)
#endif
__launch_bounds__(THREADS, MIN_BLOCKS)
gemm(const T* __restrict__ a, const T* __restrict__ b, T* c, int m, int n, int k) {
#if T_IS_FLOAT32
    kit::plainly<BM, BN, GROUP>(a, b, c, m, n, k);
#else
    extern __shared__ char dynamic[];
    // The swizzle repeats every 1024 bytes, to which stages are aligned.
    char* shared = dynamic + (1024 - kit::shared_address(dynamic) % 1024) % 1024;
    const unsigned stages = kit::shared_address(shared);
    const unsigned scratch = stages + STAGES * STAGE_BYTES + SUM_BYTES;  // for two descriptions
    const unsigned full = scratch + 2 * MAP_BYTES, empty = full + STAGES * 8;  // barriers
    const int units = ((m + BM - 1) / BM) * ((n + BN - 1) / BN);  // tiles of C

    // This block's share of the depth, in whole tiles.
    const int tiles = (k + BK - 1) / BK;
    const int share = (tiles + SPLIT - 1) / SPLIT, begin = blockIdx.z * share, count = max(0, min(share, tiles - begin));

    const bool a_chunks = k % CHUNK == 0 && reinterpret_cast<unsigned long long>(a) % 16 == 0;
    const bool b_chunks = n % CHUNK == 0 && reinterpret_cast<unsigned long long>(b) % 16 == 0;
#if MAPS
    const int2 last = kit::tile_of<BM, BN, GROUP>(blockIdx.x + (units - 1 - blockIdx.x) / gridDim.x * gridDim.x, m, n);
    // A block that copies nothing describes nothing: only data that have come tell that a description is not needed any more.
    const bool boxes = count > 0 && a_chunks && b_chunks && place_in(c, last, m, n, blockIdx.z * 2 + 1) != nullptr;
#else
    const bool boxes = false;
#endif

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            kit::start_barrier(full + stage * 8, boxes ? 2 : 4);
            kit::start_barrier(empty + stage * 8, GROUPS * 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
    }
    __syncthreads();
#if SPLIT > 1
    kit::cluster_arrive_bare();
#endif

    if (warp >= GROUPS * 4) {
#if DOWN * ACROSS > 1
        kit::keep_registers<COPY_REGISTERS>();
#endif
        int stage = 0, parity = 1;
#if MAPS
        if (boxes && warp < GROUPS * 4 + 2) {
            const bool right = warp == GROUPS * 4;  // this warp copies B, the next one A
            const unsigned made = scratch + (right ? 0 : MAP_BYTES);
            char* const map = place_in(c, last, m, n, blockIdx.z * 2 + (right ? 0 : 1));
            reinterpret_cast<unsigned*>(shared + (made - stages))[lane] = 0;
            __syncwarp();
            if (lane == 0) kit::describe(made, right ? b : a, right ? k : m, right ? n : k, right ? BK : BM);
            // A checker of memory does not see what is published: these stores tell it that the place is written.
            reinterpret_cast<unsigned*>(map)[lane] = 0;
            __syncwarp();
            kit::publish(map, made);
            if (lane == 0) {
                kit::acquire(map);
                for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
                    const int2 tile = kit::tile_of<BM, BN, GROUP>(unit, m, n);
                    for (int at = 0; at < count; ++at) {
                        const int depth = (begin + at) * BK;
                        const unsigned to = stages + stage * STAGE_BYTES, barrier = full + stage * 8;
                        kit::wait_for(empty + stage * 8, parity);
                        kit::expect(barrier, right ? SLABS * B_SLAB : A_BYTES);
                        if (right) {
#pragma unroll
                            for (int i = 0; i < SLABS; ++i)
                                kit::copy_box(to + A_BYTES + i * B_SLAB, map, depth, tile.y + i * SLAB, barrier);
                        } else {
                            kit::copy_box(to, map, tile.x, depth, barrier);
                        }
                        if (++stage == STAGES) stage = 0, parity ^= 1;
                    }
                }
            }
        }
#endif
        if (!boxes) {
            const int thread = threadIdx.x - MULTIPLIERS;
            int landed = 0, under_way = 0;  // the place that is told next, and those that are not told yet
            const auto tell = [&]() {
                asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
                __syncwarp();
                if (lane == 0) kit::arrive(full + landed * 8);
                if (++landed == STAGES) landed = 0;
                --under_way;
            };
            for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
                const int2 tile = kit::tile_of<BM, BN, GROUP>(unit, m, n);
                for (int at = 0; at < count; ++at) {
                    const int depth = (begin + at) * BK;
                    char* to = shared + stage * STAGE_BYTES;
                    kit::wait_for(empty + stage * 8, parity);
#pragma unroll 1
                    for (int i = 0; i < SLABS; ++i)
                        fetch_slab<BK>(to + A_BYTES + i * B_SLAB, b, depth, tile.y + i * SLAB, k, n, b_chunks, thread);
                    fetch_slab<BM>(to, a, tile.x, depth, m, k, a_chunks, thread);
                    kit::close_group();
                    if (++under_way > BEHIND) {
                        kit::wait_groups<BEHIND>();
                        tell();
                    }
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            }
            kit::wait_groups<0>();
            while (under_way > 0) tell();
        }
#if SPLIT > 1
        __syncwarp();
        kit::cluster_wait();
        kit::cluster_arrive_bare();
        kit::cluster_wait();
#endif
    } else {
#if DOWN * ACROSS > 1
        kit::take_registers<MULTIPLY_REGISTERS>();
#endif
        const int group = warp / 4, group_row = group / ACROSS * ROWS, group_col = group % ACROSS * COLS;
        // Where a thread's results lie: four neighbouring threads share a row's 8 columns, a warp 16 rows.
        const int row = group_row + warp % 4 * 16 + lane / 4, col = group_col + lane % 4 * 2;
        const auto release = [&](int stage) {
            if (lane == 0) kit::arrive(empty + stage * 8);
        };
        int stage = 0, parity = 0;
        float acc[PARTS][VALUES];
        for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
            const int2 tile = kit::tile_of<BM, BN, GROUP>(unit, m, n);
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
#pragma unroll
                for (int v = 0; v < VALUES; ++v) acc[part][v] = 0.0f;
            int before = 0;
            for (int at = 0; at < count; ++at) {
                const unsigned left = stages + stage * STAGE_BYTES + group_row * 128;
                const unsigned right = stages + stage * STAGE_BYTES + A_BYTES + group_col / SLAB * B_SLAB;
                kit::wait_for(full + stage * 8, parity);
                kit::begin_products();
#pragma unroll
                for (int step = 0; step < BK / 16; ++step)
#pragma unroll
                    for (int part = 0; part < PARTS; ++part)
                        kit::multiply<T>(acc[part], kit::described(left + part * 64 * 128 + step * 32, 16, 1024),
                                 kit::described(right + step * 16 * 128, B_SLAB, 1024));
                kit::close_products();
                // The products of the tile before are done: its place is free.
                kit::wait_products<1>();
                if (at > 0) release(before);
                before = stage;
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
            kit::wait_products<0>();
            if (count > 0) release(before);
#if SPLIT > 1
            // A cluster has one tile of C. Each block writes what it has of a share of columns into the block that adds it up.
            float* const sums = reinterpret_cast<float*>(shared + STAGES * STAGE_BYTES);
            const int high = min((int)BM, m - tile.x);
            kit::cluster_wait();  // all blocks have begun
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
#pragma unroll
                for (int v = 0; v < VALUES; v += 2) {
                    const int r = row + part * 64 + v / 2 % 2 * 8, at = group_col + v / 4 * 8;
                    float* const place = sums + (blockIdx.z * BM + r) * PITCH + at % SHARE + lane % 4 * 2;
                    if (r < high) kit::give(kit::shared_address(place), at / SHARE, acc[part][v], acc[part][v + 1]);
                }
            kit::cluster_arrive();
            kit::cluster_wait();
            for (int at = threadIdx.x; at < high * SHARE / 4; at += MULTIPLIERS) {
                const int r = at / (SHARE / 4), right = at % (SHARE / 4) * 4;
                float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
                for (int from = 0; from < SPLIT; ++from) {
                    const float4 x = *reinterpret_cast<const float4*>(sums + (from * BM + r) * PITCH + right);
                    sum.x += x.x;
                    sum.y += x.y;
                    sum.z += x.z;
                    sum.w += x.w;
                }
                const int to = tile.y + blockIdx.z * SHARE + right;
                kit::write_pair(c, tile.x + r, to, m, n, sum.x, sum.y);
                kit::write_pair(c, tile.x + r, to + 2, m, n, sum.z, sum.w);
            }
#else
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
                            for (int i = 0; i < 4; ++i) x[i] = kit::packed<T>(acc[part][v + i * 4], acc[part][v + i * 4 + 1]);
                            kit::store_together(to, tile.y + group_col + v / 16 * 32, n, x);
                        }
                    } else {
#pragma unroll
                        for (int v = half * 2; v < VALUES; v += 4)
                            kit::write_pair(c, r, tile.y + col + v / 4 * 8, m, n, acc[part][v], acc[part][v + 1]);
                    }
                }
#endif
        }
    }
#endif
}
