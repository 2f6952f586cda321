// What both kinds of tensor-core templates have in common: asynchronous copies, the order of tiles, stores, and the product of
// float32 factors on the ordinary units.

__device__ __forceinline__ unsigned shared_address(const void* at) {
    return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

// 16 bytes from global to shared memory, later; zeros where `valid` says that there is nothing.
__device__ __forceinline__ void copy_later(unsigned to, const T* from, bool valid) {
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;\n"); }
template <int LEFT> __device__ __forceinline__ void wait_groups() { asm volatile("cp.async.wait_group %0;\n" ::"n"(LEFT)); }

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
// Tensor cores round float32 to 10 bits of mantissa: such a product is made on the ordinary units, a part of a tile after
// another, from pieces of both factors in shared memory. A thread has UNDER rows of every sixteenth column. It asks for its
// share of the next piece before it multiplies this one. BYTES: of shared memory, which decides how deep pieces are.
template <int THREADS, int BYTES>
__device__ __forceinline__ void plainly(
    const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c, int m, int n, int k, float* shared
) {
    enum {
        HIGH = BM < 64 ? BM : 64, WIDE = BN < 64 ? BN : 64, PITCH = HIGH + 1,  // of a part; columns lie in other banks
        ROOM = BYTES / 4 / (PITCH + WIDE), DEEP = ROOM >= 32 && THREADS >= 256 ? 32 : ROOM >= 16 && THREADS >= 128 ? 16 : 8,
        DOWN_BLOCK = THREADS >= 256 ? 16 : THREADS >= 128 ? 8 : 4, UNDER = HIGH / DOWN_BLOCK, BESIDE = WIDE / 16,
        LEFT = (HIGH * DEEP + THREADS - 1) / THREADS, RIGHT = (DEEP * WIDE + THREADS - 1) / THREADS,  // a thread's shares
    };
    const int parts = BM / HIGH * (BN / WIDE), tiles = ((m + BM - 1) / BM) * ((n + BN - 1) / BN);
    const int y = threadIdx.x / 16 * UNDER, x = threadIdx.x % 16;
    const bool multiplies = threadIdx.x < DOWN_BLOCK * 16;
    float* const left = shared;  // DEEP x PITCH: columns of A
    float* const right = shared + DEEP * PITCH;  // DEEP x WIDE
    // Blocks that would divide the depth take parts in turn.
    for (int at = blockIdx.x * gridDim.z + blockIdx.z; at < tiles * parts; at += gridDim.x * gridDim.z) {
        const int2 tile = tile_of(at / parts, m, n);
        const int row0 = tile.x + at % parts / (BN / WIDE) * HIGH, col0 = tile.y + at % parts % (BN / WIDE) * WIDE;
        if (row0 >= m || col0 >= n) continue;
        float of_a[LEFT], of_b[RIGHT];
        const auto fetch = [&](int depth) {
#pragma unroll
            for (int i = 0; i < LEFT; ++i) {
                const int place = i * THREADS + threadIdx.x, row = row0 + place / DEEP, d = depth + place % DEEP;
                of_a[i] = place < HIGH * DEEP && row < m && d < k ? a[(long long)row * k + d] : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < RIGHT; ++i) {
                const int place = i * THREADS + threadIdx.x, d = depth + place / WIDE, col = col0 + place % WIDE;
                of_b[i] = place < DEEP * WIDE && d < k && col < n ? b[(long long)d * n + col] : 0.0f;
            }
        };
        float sums[UNDER][BESIDE];
#pragma unroll
        for (int i = 0; i < UNDER; ++i)
#pragma unroll
            for (int j = 0; j < BESIDE; ++j) sums[i][j] = 0.0f;
        fetch(0);
        for (int depth = 0; depth < k; depth += DEEP) {
#pragma unroll
            for (int i = 0; i < LEFT; ++i) {
                const int place = i * THREADS + threadIdx.x;
                if (place < HIGH * DEEP) left[place % DEEP * PITCH + place / DEEP] = of_a[i];
            }
#pragma unroll
            for (int i = 0; i < RIGHT; ++i) {
                const int place = i * THREADS + threadIdx.x;
                if (place < DEEP * WIDE) right[place] = of_b[i];
            }
            __syncthreads();
            fetch(depth + DEEP);
            if (multiplies) {
#pragma unroll 8
                for (int d = 0; d < DEEP; ++d)
#pragma unroll
                    for (int i = 0; i < UNDER; ++i)
#pragma unroll
                        for (int j = 0; j < BESIDE; ++j) sums[i][j] += left[d * PITCH + y + i] * right[d * WIDE + x + j * 16];
            }
            __syncthreads();
        }
        if (multiplies) {
#pragma unroll
            for (int i = 0; i < UNDER; ++i)
#pragma unroll
                for (int j = 0; j < BESIDE; ++j)
                    if (row0 + y + i < m && col0 + x + j * 16 < n)
                        c[(long long)(row0 + y + i) * n + col0 + x + j * 16] = sums[i][j];
        }
    }
}
#endif
