// A block for each row, which is read twice: for its largest magnitude, and for the results.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

extern "C" __global__ void int8_quant(const T* __restrict__ x, signed char* __restrict__ q, float* __restrict__ scales,
                                      int n, int d) {
    __shared__ float partial[32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const T* from = x + (long long)blockIdx.x * d;
    signed char* to = q + (long long)blockIdx.x * d;

    float largest = 0.0f;
    for (int col = threadIdx.x; col < d; col += blockDim.x) largest = fmaxf(largest, fabsf(to_float(from[col])));
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    if (lane == 0) partial[warp] = largest;
    __syncthreads();
    for (int other = 0; other < warps; ++other) largest = fmaxf(largest, partial[other]);

    largest = fmaxf(largest, 1e-10f);
    if (threadIdx.x == 0) scales[blockIdx.x] = largest / 127.0f;
    const float inverse = 127.0f / largest;
    for (int col = threadIdx.x; col < d; col += blockDim.x)
        to[col] = (signed char)max(-127, min(127, __float2int_rn(to_float(from[col]) * inverse)));
}
