// The blocks of a group, along z, take turns on its tiles of 16 rows; along x, each has 16 columns of the results.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

extern "C" __global__ void grouped_gemm(const T* __restrict__ x, const T* __restrict__ weights, const T* __restrict__ bias,
                                        const int* __restrict__ offsets, T* __restrict__ out, int g, int n, int k, int m) {
    __shared__ float left[16][16], right[16][16];
    const int group = blockIdx.z, col = blockIdx.x * 16 + threadIdx.x;
    const int first = offsets[group], end = offsets[group + 1];
    const T* of_group = weights + (long long)group * k * m;
    for (int top = first + blockIdx.y * 16; top < end; top += gridDim.y * 16) {
        const int row = top + threadIdx.y;
        float sum = 0.0f;
        for (int start = 0; start < k; start += 16) {
            const int across = start + threadIdx.x, down = start + threadIdx.y;
            left[threadIdx.y][threadIdx.x] = row < end && across < k ? to_float(x[(long long)row * k + across]) : 0.0f;
            right[threadIdx.y][threadIdx.x] = down < k && col < m ? to_float(of_group[(long long)down * m + col]) : 0.0f;
            __syncthreads();
            for (int i = 0; i < 16; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
            __syncthreads();
        }
        if (row < end && col < m) {
            sum += to_float(bias[(long long)group * m + col]);
            out[(long long)row * m + col] = T(sum / (1.0f + expf(-sum)));
        }
    }
}
