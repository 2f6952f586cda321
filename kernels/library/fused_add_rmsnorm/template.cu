// A row belongs to BLOCK_X threads, BLOCK_Y rows to a block. A thread holds ITEMS vectors of its row in registers from the
// sum of squares to the scaling, so that they are read once; what a longer row has beyond that is read again.

// The weight is the same for every row: it may stay in every cache.
template <int V> __device__ __forceinline__ Pack<V> kept(const T* from) {
    return *reinterpret_cast<const Pack<V>*>(from);
}

enum {
    WARPS = BLOCK_X / 32,
    WALKS = GRID_CAP > 0,  // a block goes on to further rows
};

// The sum over the BLOCK_X threads of a row, in all of them. `round` counts the calls: two buffers in turn need one
// barrier a call, as whoever writes a buffer again has passed the barrier behind its last reading.
__device__ __forceinline__ float row_sum(float x, int round) {
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
#if BLOCK_X > 32
    __shared__ float partial[WALKS ? 2 : 1][BLOCK_Y][WARPS];
    float* mine = partial[WALKS ? round & 1 : 0][threadIdx.y];
    if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32] = x;
    __syncthreads();
    x = mine[threadIdx.x % WARPS];
#pragma unroll
    for (int lane = WARPS / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
#endif
    return x;
}

template <int V> __device__ __forceinline__ void scaled(T* to, const float (&x)[V], float scale, const Pack<V>& weight) {
    Pack<V> out;
#pragma unroll
    for (int k = 0; k < V; ++k) from_float(out.value[k], x[k] * scale * to_float(weight.value[k]));
    store<V>(to, out);
}

template <int V>
__device__ __forceinline__ void rows(T* __restrict__ input, T* __restrict__ residual, const T* __restrict__ weight,
                                     float eps, int n, int d) {
    const int first = threadIdx.x * V;
    constexpr int STEP = BLOCK_X * V;
#if WEIGHT_EARLY
    Pack<V> w[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
        if (first + i * STEP < d) w[i] = kept<V>(weight + first + i * STEP);
#endif
    int round = 0;
    long long row = (long long)blockIdx.x * BLOCK_Y + threadIdx.y;
    do {
        // Threads beyond the last row have no columns, but take part in the barriers.
        const int end = row < n ? d : 0;
        T* in = input + row * d;
        T* res = residual + row * d;
        float sum = 0.0f;

        Pack<V> a[ITEMS], r[ITEMS];
#if HOLD_FLOAT
        float x[ITEMS][V];
#endif
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int col = first + i * STEP;
            if (col < end) {
                a[i] = load<V>(in + col);
                r[i] = load<V>(res + col);
            }
        }
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int col = first + i * STEP;
            if (col < end) {
#pragma unroll
                for (int k = 0; k < V; ++k) {
                    const float y = to_float(a[i].value[k]) + to_float(r[i].value[k]);
                    sum += y * y;
                    from_float(r[i].value[k], y);
#if HOLD_FLOAT
                    x[i][k] = y;
#endif
                }
                store<V>(res + col, r[i]);
            }
        }
        for (int col = first + ITEMS * STEP; col < end; col += STEP) {
            const Pack<V> p = load<V>(in + col);
            Pack<V> q = load<V>(res + col);
#pragma unroll
            for (int k = 0; k < V; ++k) {
                const float y = to_float(p.value[k]) + to_float(q.value[k]);
                sum += y * y;
                from_float(q.value[k], y);
            }
            *reinterpret_cast<Pack<V>*>(res + col) = q;  // without a hint: it is read again soon
        }

        const float scale = rsqrtf(row_sum(sum, round) / d + eps);

#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int col = first + i * STEP;
            if (col < end) {
#if !HOLD_FLOAT
                float x[ITEMS][V];
#pragma unroll
                for (int k = 0; k < V; ++k) x[i][k] = to_float(r[i].value[k]);
#endif
#if WEIGHT_EARLY
                scaled<V>(in + col, x[i], scale, w[i]);
#else
                scaled<V>(in + col, x[i], scale, kept<V>(weight + col));
#endif
            }
        }
        for (int col = first + ITEMS * STEP; col < end; col += STEP) {
            const Pack<V> q = *reinterpret_cast<const Pack<V>*>(res + col);
            float y[V];
#pragma unroll
            for (int k = 0; k < V; ++k) y[k] = to_float(q.value[k]);
            scaled<V>(in + col, y, scale, kept<V>(weight + col));
        }
        ++round;
        row += (long long)gridDim.x * BLOCK_Y;
    } while (WALKS && row - threadIdx.y < n);  // the same answer in every thread of the block
}

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y, MIN_BLOCKS)
fused_add_rmsnorm(T* __restrict__ input, T* __restrict__ residual, const T* __restrict__ weight, float eps, int n, int d) {
    // The same answer in every thread: vectors need rows that start and end on one.
    const unsigned long long addresses = reinterpret_cast<unsigned long long>(input) |
                                         reinterpret_cast<unsigned long long>(residual) |
                                         reinterpret_cast<unsigned long long>(weight);
    if (d % VEC == 0 && addresses % Pack<VEC>::PIECE == 0)
        rows<VEC>(input, residual, weight, eps, n, d);
    else
        rows<1>(input, residual, weight, eps, n, d);
}
