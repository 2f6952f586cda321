// A block for each row, which is read three times: for its mean, for its variance, and for the results.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

// The sum over the block, in every thread.
__device__ float block_sum(float x) {
    __shared__ float partial[32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    __syncthreads();  // the sum before this one has been read
    if (lane == 0) partial[warp] = x;
    __syncthreads();
    float sum = 0.0f;
    for (int other = 0; other < warps; ++other) sum += partial[other];
    return sum;
}

extern "C" __global__ void layernorm(const T* __restrict__ input, const T* __restrict__ weight, const T* __restrict__ bias,
                                     T* __restrict__ out, float eps, int n, int d) {
    const T* from = input + (long long)blockIdx.x * d;
    T* to = out + (long long)blockIdx.x * d;

    float sum = 0.0f;
    for (int col = threadIdx.x; col < d; col += blockDim.x) sum += to_float(from[col]);
    const float mean = block_sum(sum) / d;

    float squares = 0.0f;
    for (int col = threadIdx.x; col < d; col += blockDim.x) {
        const float away = to_float(from[col]) - mean;
        squares += away * away;
    }
    const float scale = rsqrtf(block_sum(squares) / d + eps);

    for (int col = threadIdx.x; col < d; col += blockDim.x)
        to[col] = T((to_float(from[col]) - mean) * scale * to_float(weight[col]) + to_float(bias[col]));
}
