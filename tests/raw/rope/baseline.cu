// A block for each token; a thread takes one pair of elements after another, neighbouring threads neighbouring pairs.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

extern "C" __global__ void rope(const T* __restrict__ x, const float* __restrict__ cosines,
                                const float* __restrict__ sines, T* __restrict__ out, int n, int h, int half) {
    const long long token = blockIdx.x;
    for (int pair = threadIdx.x; pair < h * half; pair += blockDim.x) {
        const int head = pair / half, i = pair % half;
        const long long at = (token * h + head) * 2 * half + i;
        const float c = cosines[token * half + i], s = sines[token * half + i];
        const float first = to_float(x[at]), second = to_float(x[at + half]);
        out[at] = T(first * c - second * s);
        out[at + half] = T(second * c + first * s);
    }
}
