// A block for each row, which is read twice: for its largest magnitude, and for the results.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

#if Q_IS_INT8
__device__ Q rounded(float x) { return (Q)max(-127, min(127, __float2int_rn(x))); }
#else
__device__ Q rounded(float x) { return Q(x); }
#endif

extern "C" __global__ void quantize_per_token(const T* __restrict__ x, Q* __restrict__ q, float* __restrict__ scales,
                                              float largest, int n, int d) {
    __shared__ float partial[32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const T* from = x + (long long)blockIdx.x * d;
    Q* to = q + (long long)blockIdx.x * d;

    float most = 0.0f;
    for (int col = threadIdx.x; col < d; col += blockDim.x) most = fmaxf(most, fabsf(to_float(from[col])));
    for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    if (lane == 0) partial[warp] = most;
    __syncthreads();
    for (int other = 0; other < warps; ++other) most = fmaxf(most, partial[other]);

    most = fmaxf(most, 1e-10f);
    if (threadIdx.x == 0) scales[blockIdx.x] = most / largest;
    const float inverse = largest / most;
    for (int col = threadIdx.x; col < d; col += blockDim.x) to[col] = rounded(to_float(from[col]) * inverse);
}
