// A block for each token, which reads its logits three times: for the largest, for the sum of exponentials, for the gradient.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

extern "C" __global__ void cross_entropy(const T* __restrict__ logits, const int* __restrict__ targets,
                                         const float* __restrict__ scale, float* __restrict__ loss, T* __restrict__ dlogits,
                                         int n, int v) {
    __shared__ float partial[32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const T* from = logits + (long long)blockIdx.x * v;
    T* to = dlogits + (long long)blockIdx.x * v;

    float largest = -3.402823466e38f;
    for (int col = threadIdx.x; col < v; col += blockDim.x) largest = fmaxf(largest, to_float(from[col]));
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    if (lane == 0) partial[warp] = largest;
    __syncthreads();
    for (int other = 0; other < warps; ++other) largest = fmaxf(largest, partial[other]);
    __syncthreads();  // the largest ones have been read

    float sum = 0.0f;
    for (int col = threadIdx.x; col < v; col += blockDim.x) sum += expf(to_float(from[col]) - largest);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) partial[warp] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int other = 0; other < warps; ++other) sum += partial[other];

    const int target = targets[blockIdx.x];
    const float factor = scale[blockIdx.x];
    if (threadIdx.x == 0) loss[blockIdx.x] = largest + logf(sum) - to_float(from[target]);
    for (int col = threadIdx.x; col < v; col += blockDim.x) {
        const float probability = expf(to_float(from[col]) - largest) / sum;
        to[col] = T(factor * (probability - (col == target ? 1.0f : 0.0f)));
    }
}
