// A thread for each byte, which holds two weights.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

extern "C" __global__ void dequant_int4(const unsigned char* __restrict__ packed, const T* __restrict__ scales,
                                        T* __restrict__ out, int n, int m) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    const long long row = blockIdx.y;
    if (col >= m) return;
    const int groups = (m + 63) / 64;
    const int both = packed[row * m + col];
    const float scale = to_float(scales[row * groups + col / 64]);
    out[row * 2 * m + 2 * col] = T((both % 16 - 8) * scale);
    out[row * 2 * m + 2 * col + 1] = T((both / 16 - 8) * scale);
}
