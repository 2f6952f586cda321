// A thread for each element of the result; neighbouring threads take neighbouring channels.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

extern "C" __global__ void causal_conv1d(const T* __restrict__ x, const float* __restrict__ filter,
                                         const float* __restrict__ bias, T* __restrict__ out, int b, int t, int c) {
    const int channel = blockIdx.x * blockDim.x + threadIdx.x;
    const int step = blockIdx.y;
    if (channel >= c) return;
    const long long start = (long long)blockIdx.z * t * c + channel;
    float sum = bias[channel];
    for (int k = 0; k < 4; ++k) {
        const int from = step - 3 + k;
        if (from >= 0) sum += filter[channel * 4 + k] * to_float(x[start + (long long)from * c]);
    }
    out[start + (long long)step * c] = T(sum);
}
