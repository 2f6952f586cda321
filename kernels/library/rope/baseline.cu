// A block for each token; a thread takes one pair of elements after another, first of the query, then of the key.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

extern "C" __global__ void rope(const long long* __restrict__ positions, T* query, T* key,
                                const float* __restrict__ table, int n, int h, int k, int pairs) {
    const long long token = blockIdx.x;
    const float* angles = table + positions[token] * 2 * pairs;
    for (int i = threadIdx.x; i < (h + k) * pairs; i += blockDim.x) {
        const int head = i / pairs, pair = i % pairs;
        T* x = head < h ? query + (token * h + head) * 2 * pairs : key + (token * k + head - h) * 2 * pairs;
        const float cosine = angles[pair], sine = angles[pairs + pair];
        const float first = to_float(x[pair]), second = to_float(x[pairs + pair]);
        x[pair] = T(first * cosine - second * sine);
        x[pairs + pair] = T(second * cosine + first * sine);
    }
}
