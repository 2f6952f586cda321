// A block walks over rows. It reads each twice, for its averages and for the results, keeps the sums of its rows for weight and
// bias in shared memory, and adds them to those of the other blocks at the end.

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

extern "C" __global__ void layernorm_backward(const T* __restrict__ gradient, const T* __restrict__ x,
                                              const T* __restrict__ weight, const float* __restrict__ mean,
                                              const float* __restrict__ rstd, T* __restrict__ dx,
                                              float* __restrict__ dweight, float* __restrict__ dbias, int n, int d) {
    extern __shared__ float sums[];
    for (int col = threadIdx.x; col < 2 * d; col += blockDim.x) sums[col] = 0.0f;

    for (long long row = blockIdx.x; row < n; row += gridDim.x) {
        const T* from = x + row * d;
        const T* above = gradient + row * d;
        const float middle = mean[row], scale = rstd[row];
        float plain = 0.0f, along = 0.0f;
        for (int col = threadIdx.x; col < d; col += blockDim.x) {
            const float w = to_float(above[col]) * to_float(weight[col]);
            plain += w;
            along += w * (to_float(from[col]) - middle) * scale;
        }
        plain = block_sum(plain) / d;
        along = block_sum(along) / d;
        for (int col = threadIdx.x; col < d; col += blockDim.x) {
            const float g = to_float(above[col]), z = (to_float(from[col]) - middle) * scale;
            dx[row * d + col] = T(scale * (g * to_float(weight[col]) - plain - z * along));
            sums[col] += g * z;
            sums[d + col] += g;
        }
    }

    __syncthreads();
    for (int col = threadIdx.x; col < d; col += blockDim.x) {
        atomicAdd(&dweight[col], sums[col]);
        atomicAdd(&dbias[col], sums[d + col]);
    }
}
