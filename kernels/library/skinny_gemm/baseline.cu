// A thread for each result: neighbours read neighbouring columns of b.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

extern "C" __global__ void gemm(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ c, int m, int n, int k) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (col >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += to_float(a[(long long)row * k + i]) * to_float(b[(long long)i * n + col]);
    c[(long long)row * n + col] = T(sum);
}
