// A block for each query, whose warps take turns on the keys; each warp keeps an online softmax (the largest score so far, the
// sum of exponentials relative to it, the weighted values), and the block joins them.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

extern "C" __global__ void attn_decode(const T* __restrict__ q, const T* __restrict__ keys, const T* __restrict__ values,
                                       T* __restrict__ out, float scale, int b, int h, int m, int s, int e) {
    __shared__ float largest_of[8], sum_of[8], weighted[8][256];
    const int lane = threadIdx.x, warp = threadIdx.y;
    const long long head = (long long)blockIdx.z * h + blockIdx.y;
    const T* query = q + (head * m + blockIdx.x) * e;

    float mine[8], total[8];
    for (int i = 0; i < 8; ++i) {
        const int col = lane + 32 * i;
        mine[i] = col < e ? to_float(query[col]) * scale : 0.0f;
        total[i] = 0.0f;
    }
    float largest = -3.402823466e38f, sum = 0.0f;
    for (int step = warp; step < s; step += 8) {
        const T* key = keys + (head * s + step) * e;
        const T* value = values + (head * s + step) * e;
        float score = 0.0f;
        for (int i = 0; i < 8; ++i) {
            const int col = lane + 32 * i;
            if (col < e) score += mine[i] * to_float(key[col]);
        }
        for (int by = 16; by > 0; by /= 2) score += __shfl_xor_sync(0xffffffffu, score, by);
        const float before = largest;
        largest = fmaxf(largest, score);
        const float shrink = expf(before - largest), weight = expf(score - largest);
        sum = sum * shrink + weight;
        for (int i = 0; i < 8; ++i) {
            const int col = lane + 32 * i;
            if (col < e) total[i] = total[i] * shrink + weight * to_float(value[col]);
        }
    }
    for (int i = 0; i < 8; ++i) weighted[warp][lane + 32 * i] = total[i];
    if (lane == 0) {
        largest_of[warp] = largest;
        sum_of[warp] = sum;
    }
    __syncthreads();

    for (int other = 0; other < 8; ++other) largest = fmaxf(largest, largest_of[other]);
    sum = 0.0f;
    for (int other = 0; other < 8; ++other) sum += sum_of[other] * expf(largest_of[other] - largest);
    T* to = out + (head * m + blockIdx.x) * e;
    for (int col = warp * 32 + lane; col < e; col += 256) {
        float result = 0.0f;
        for (int other = 0; other < 8; ++other) result += weighted[other][col] * expf(largest_of[other] - largest);
        to[col] = T(result / sum);
    }
}
