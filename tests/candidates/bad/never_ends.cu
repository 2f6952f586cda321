// One thread waits for something that never happens.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

extern "C" __global__ void silu_and_mul(const T* __restrict__ input, T* out, int n, int d) {
    const long long row = blockIdx.x;
    // Sleeping is a side effect: a loop without one may be assumed to end, and is removed.
    while (n > 0) __nanosleep(1000);
    for (int col = threadIdx.x; col < d; col += blockDim.x) {
        const float x = to_float(input[row * 2 * d + col]);
        out[row * d + col] = T(x / (1.0f + expf(-x)) * to_float(input[row * 2 * d + d + col]));

    }
}
