// A warp for each row of the matrix, four of them a block; a thread takes a byte, two weights, at a time.

__device__ float to_float(float x) { return x; }
__device__ void from_float(float& to, float x) { to = x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
__device__ void from_float(__half& to, float x) { to = __float2half_rn(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void from_float(__nv_bfloat16& to, float x) { to = __float2bfloat16_rn(x); }
#endif

extern "C" __global__ void gemv_int4(const unsigned char* __restrict__ packed, const T* __restrict__ scales,
                                     const T* __restrict__ x, T* __restrict__ out, int n, int m) {
    const int row = blockIdx.x * blockDim.y + threadIdx.y, groups = (m + 63) / 64;
    if (row >= n) return;
    const unsigned char* from = packed + (long long)row * m;
    const T* scale = scales + (long long)row * groups;
    float sum = 0.0f;
    for (int at = threadIdx.x; at < m; at += 32) {
        const int both = from[at];
        const float pair = (both % 16 - 8) * to_float(x[2 * at]) + (both / 16 - 8) * to_float(x[2 * at + 1]);
        sum += pair * to_float(scale[at / 64]);
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) from_float(out[row], sum);
}
