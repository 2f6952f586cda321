// A warp for each row of the matrix, four of them a block.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

extern "C" __global__ void gemv(const T* __restrict__ matrix, const T* __restrict__ x, T* __restrict__ out, int n, int k) {
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= n) return;
    const T* from = matrix + (long long)row * k;
    float sum = 0.0f;
    for (int col = threadIdx.x; col < k; col += 32) sum += to_float(from[col]) * to_float(x[col]);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) out[row] = T(sum);
}
