// Maximum and sum in one pass, rescaled whenever the maximum grows.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

extern "C" __global__ void softmax(const T* __restrict__ input, T* __restrict__ out, int n, int d) {
    __shared__ float sums[32], maxima[32];
    const long long start = (long long)blockIdx.x * d;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;

    float sum = 0.0f, largest = -3.4028235e38f;
    for (int col = threadIdx.x; col < d; col += blockDim.x) {
        const float x = to_float(input[start + col]), larger = fmaxf(largest, x);
        sum = sum * expf(largest - larger) + expf(x - larger);
        largest = larger;
    }
    float top = largest;
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    if (lane == 0) maxima[warp] = top;
    __syncthreads();
    for (int other = 0; other < warps; ++other) top = fmaxf(top, maxima[other]);
    sum *= expf(largest - top);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int other = 0; other < warps; ++other) sum += sums[other];
    for (int col = threadIdx.x; col < d; col += blockDim.x) out[start + col] = T(expf(to_float(input[start + col]) - top) / sum);
}
