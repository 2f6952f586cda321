// LANES threads share a set of SET rows, and a block has SETS of these. A thread takes WIDTH bytes of each row of its set at a
// time, with the same elements of x for all of them, and PARTS such pieces are in flight. The sums of a set's threads are
// added up at the end, in shared memory where they are of several warps.

#include "kit/reduce.cuh"
#include "kit/vectors.cuh"

enum {
    GROUP = 64,  // bytes that share a scale
    STEP = LANES * WIDTH,
    WARPS = LANES > 32 ? LANES / 32 : 1,
    WITHIN = LANES > 32 ? 32 : LANES,
};

// Weights of 4 bits as floats, exactly: above the bits of 2^23 they are its last places.
__device__ __forceinline__ float weight(unsigned int bits) { return __uint_as_float(0x4b000000u | bits) - 8388616.0f; }

using Words = kit::Vector<unsigned int, WIDTH / 4>;

__device__ __forceinline__ float product(const Words& w, const float (&x)[2 * WIDTH]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < WIDTH / 4; ++i) {
#pragma unroll
        for (int v = 0; v < 8; ++v) sum += weight(w.value[i] >> 4 * v & 15) * x[8 * i + v];
    }
    return sum;
}

// Rows that all start on a piece of WIDTH bytes and end on one.
__device__ __forceinline__ void pieces(float (&sums)[SET], const unsigned char* __restrict__ packed,
                                       const T* __restrict__ scales, const T* __restrict__ x, int first_row, int n, int m) {
    const int groups = (m + GROUP - 1) / GROUP;
    for (int begin = threadIdx.x * WIDTH; begin < m; begin += PARTS * STEP) {
        Words w[PARTS][SET];
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
#pragma unroll
            for (int s = 0; s < SET; ++s)
                if (begin + p * STEP < m && first_row + s < n)
                    w[p][s] = kit::load<WIDTH / 4, CACHE>(
                        reinterpret_cast<const unsigned int*>(packed + (long long)(first_row + s) * m + begin + p * STEP));
        }
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
            const int at = begin + p * STEP;
            if (at < m) {
                // Every row needs them, so that they may stay in every cache.
                kit::Vector<T, 2 * WIDTH> loaded;
                kit::load_into(loaded, x + 2 * at);
                float of_x[2 * WIDTH];
#pragma unroll
                for (int v = 0; v < 2 * WIDTH; ++v) of_x[v] = float(loaded.value[v]);
#pragma unroll
                for (int s = 0; s < SET; ++s)
                    if (first_row + s < n)
                        sums[s] += product(w[p][s], of_x) *
                                   float(scales[(long long)(first_row + s) * groups + at / GROUP]);
            }
        }
    }
}

// Other rows, byte by byte.
__device__ __forceinline__ void bytes(float (&sums)[SET], const unsigned char* __restrict__ packed,
                                      const T* __restrict__ scales, const T* __restrict__ x, int first_row, int n, int m) {
    const int groups = (m + GROUP - 1) / GROUP;
#pragma unroll 4
    for (int at = threadIdx.x; at < m; at += LANES) {
        const float low = float(x[2 * at]), high = float(x[2 * at + 1]);
#pragma unroll
        for (int s = 0; s < SET; ++s) {
            if (first_row + s < n) {
                const unsigned int both = packed[(long long)(first_row + s) * m + at];
                sums[s] += (weight(both & 15) * low + weight(both >> 4) * high) *
                           float(scales[(long long)(first_row + s) * groups + at / GROUP]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(LANES * SETS)
gemv_int4(const unsigned char* __restrict__ packed, const T* __restrict__ scales, const T* __restrict__ x,
          T* __restrict__ out, int n, int m) {
    const int first_row = (blockIdx.x * SETS + threadIdx.y) * SET;
    float sums[SET];
#pragma unroll
    for (int s = 0; s < SET; ++s) sums[s] = 0.0f;
    if (m % WIDTH == 0 && kit::on_vectors<unsigned char, WIDTH>(packed) && kit::on_vectors<float, 4>(x))
        pieces(sums, packed, scales, x, first_row, n, m);
    else
        bytes(sums, packed, scales, x, first_row, n, m);

#pragma unroll
    for (int s = 0; s < SET; ++s) sums[s] = kit::fold_lanes<WITHIN>(sums[s], kit::Sum{});
#if LANES > 32
    __shared__ float partial[SETS][SET][WARPS];
    if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int s = 0; s < SET; ++s) partial[threadIdx.y][s][threadIdx.x / 32] = sums[s];
    }
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll
        for (int s = 0; s < SET; ++s) {
            sums[s] = 0.0f;
#pragma unroll
            for (int other = 0; other < WARPS; ++other) sums[s] += partial[threadIdx.y][s][other];
        }
    }
#endif
    if (threadIdx.x == 0) {
#pragma unroll
        for (int s = 0; s < SET; ++s)
            if (first_row + s < n) out[first_row + s] = T(sums[s]);
    }
}
