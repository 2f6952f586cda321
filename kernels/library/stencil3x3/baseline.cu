// A thread for each element of the result; neighbouring threads take neighbouring columns.

__device__ float to_float(float x) { return x; }
__device__ void from_float(float& to, float x) { to = x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
__device__ void from_float(__half& to, float x) { to = __float2half_rn(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ void from_float(__nv_bfloat16& to, float x) { to = __float2bfloat16_rn(x); }
#endif

extern "C" __global__ void stencil3x3(const T* __restrict__ image, const float* __restrict__ filter,
                                      T* __restrict__ out, int n, int h, int w) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= h || col >= w) return;
    const long long start = (long long)blockIdx.z * h * w;
    float sum = 0.0f;
    for (int dy = -1; dy <= 1; ++dy) {
        for (int dx = -1; dx <= 1; ++dx) {
            const int y = row + dy, x = col + dx;
            if (y >= 0 && y < h && x >= 0 && x < w)
                sum += filter[3 * (dy + 1) + dx + 1] * to_float(image[start + (long long)y * w + x]);
        }
    }
    from_float(out[start + (long long)row * w + col], sum);
}
