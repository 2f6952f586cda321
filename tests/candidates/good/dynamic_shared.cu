// Dynamic shared memory, sized by a parameter of the template.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

extern "C" __global__ void silu_and_mul(const T* __restrict__ input, T* __restrict__ out, int n, int d) {
    extern __shared__ float scratch[];
    const long long row = blockIdx.x;
    for (int col = threadIdx.x; col < d; col += BLOCK) {
        scratch[threadIdx.x] = to_float(input[row * 2 * d + col]);
        const float x = scratch[threadIdx.x];
        out[row * d + col] = T(x / (1.0f + expf(-x)) * to_float(input[row * 2 * d + d + col]));
    }
}
