// The sum is normed but never stored in the residual.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

extern "C" __global__ void fused_add_rmsnorm(T* input, T* residual, const T* weight, float eps, int n, int d) {
    __shared__ float partial[32];
    T* in = input + (long long)blockIdx.x * d;
    T* res = residual + (long long)blockIdx.x * d;

    float sum = 0.0f;
    for (int col = threadIdx.x; col < d; col += blockDim.x) {
        const float x = to_float(in[col]) + to_float(res[col]);
        sum += x * x;
    }
    for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = threadIdx.x % 32 < blockDim.x / 32 ? partial[threadIdx.x % 32] : 0.0f;
    for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
    const float scale = rsqrtf(sum / d + eps);
    for (int col = threadIdx.x; col < d; col += blockDim.x)
        in[col] = T((to_float(in[col]) + to_float(res[col])) * scale * to_float(weight[col]));
}
