// The textbook kernel: a block computes a tile of 16 x 16 results, one a thread, from tiles in shared memory.

#define TILE 16

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

extern "C" __global__ void gemm(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c, int m, int n, int k) {
    __shared__ float tile_a[TILE][TILE];
    __shared__ float tile_b[TILE][TILE];
    const int x = threadIdx.x, y = threadIdx.y;
    const long long row = blockIdx.y * TILE + y, col = blockIdx.x * TILE + x;

    float sum = 0.0f;
    for (int start = 0; start < k; start += TILE) {
        tile_a[y][x] = row < m && start + x < k ? to_float(a[row * k + start + x]) : 0.0f;
        tile_b[y][x] = col < n && start + y < k ? to_float(b[(long long)(start + y) * n + col]) : 0.0f;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += tile_a[y][i] * tile_b[i][x];
        __syncthreads();
    }
    if (row < m && col < n) c[row * n + col] = T(sum);
}
