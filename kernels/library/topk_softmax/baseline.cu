// A block for each row, which it keeps in shared memory. k times the block looks for the largest logit that is left.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#elif T_IS_BFLOAT16
__device__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
#endif

// The larger of two logits, the one with the lower index when they are equal; an index below 0 is none.
__device__ void keep_larger(float& value, int& index, float other, int at) {
    if (at >= 0 && (index < 0 || other > value || (other == value && at < index))) {
        value = other;
        index = at;
    }
}

extern "C" __global__ void topk_softmax(const T* __restrict__ logits, float* __restrict__ weights,
                                        int* __restrict__ experts, int n, int e, int k) {
    extern __shared__ float row[];
    __shared__ float sums[32], values[32];
    __shared__ int indices[32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const long long start = (long long)blockIdx.x * e;
    for (int i = threadIdx.x; i < e; i += blockDim.x) row[i] = to_float(logits[start + i]);
    __syncthreads();

    float largest = 0.0f, total = 0.0f;
    for (int turn = 0; turn < k; ++turn) {
        float value = 0.0f;
        int index = -1;
        // A logit that was chosen before has been replaced by a NaN, which is equal to nothing.
        for (int i = threadIdx.x; i < e; i += blockDim.x)
            if (row[i] == row[i]) keep_larger(value, index, row[i], i);
        for (int step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, value, step);
            const int at = __shfl_xor_sync(0xffffffffu, index, step);
            keep_larger(value, index, other, at);
        }
        if (lane == 0) {
            values[warp] = value;
            indices[warp] = index;
        }
        __syncthreads();
        for (int other = 0; other < warps; ++other) keep_larger(value, index, values[other], indices[other]);

        if (turn == 0) {
            // The first one is the row's maximum, which the softmax needs.
            largest = value;
            float sum = 0.0f;
            for (int i = threadIdx.x; i < e; i += blockDim.x) sum += expf(row[i] - largest);
            for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
            if (lane == 0) sums[warp] = sum;
            __syncthreads();
            for (int other = 0; other < warps; ++other) total += sums[other];
        }
        __syncthreads();  // the row and the warps' answers have been read
        if (threadIdx.x == 0) {
            weights[(long long)blockIdx.x * k + turn] = expf(value - largest) / total;
            experts[(long long)blockIdx.x * k + turn] = index;
            if (index >= 0) row[index] = __int_as_float(0x7fc00000);
        }
        __syncthreads();
    }
}
