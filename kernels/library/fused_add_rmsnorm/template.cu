// A row belongs to BLOCK_X threads, BLOCK_Y rows to a block. A thread holds ITEMS vectors of its row in registers from the
// sum of squares to the scaling, so that they are read once; what a longer row has beyond that is read again.

using Address = unsigned long long;
enum {
    PIECE = Pack<VEC>::PIECE,
    STEP = BLOCK_X * VEC,
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

// The weight is the same for every row: it may stay in every cache.
__device__ __forceinline__ Pack<VEC> kept(const T* from) { return *reinterpret_cast<const Pack<VEC>*>(from); }

__device__ __forceinline__ void scaled(T* to, const float (&x)[VEC], float scale, const Pack<VEC>& weight) {
    Pack<VEC> out;
#pragma unroll
    for (int k = 0; k < VEC; ++k) from_float(out.value[k], x[k] * scale * to_float(weight.value[k]));
    store<VEC>(to, out);
}

// Rows that all start and end on a vector.
__device__ __forceinline__ void rows(T* __restrict__ input, T* __restrict__ residual, const T* __restrict__ weight,
                                     float eps, int n, int d) {
    const int first = threadIdx.x * VEC;
#if WEIGHT_EARLY
    Pack<VEC> w[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
        if (first + i * STEP < d) w[i] = kept(weight + first + i * STEP);
#endif
    int round = 0;
    long long row = (long long)blockIdx.x * BLOCK_Y + threadIdx.y;
    do {
        // Threads beyond the last row have no columns, but take part in the barriers.
        const int end = row < n ? d : 0;
        T* in = input + row * d;
        T* res = residual + row * d;
        float sum = 0.0f;

        Pack<VEC> a[ITEMS], r[ITEMS];
#if HOLD_FLOAT
        float x[ITEMS][VEC];
#endif
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int col = first + i * STEP;
            if (col < end) {
                a[i] = load<VEC>(in + col);
                r[i] = load<VEC>(res + col);
            }
        }
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int col = first + i * STEP;
            if (col < end) {
#pragma unroll
                for (int k = 0; k < VEC; ++k) {
                    const float y = to_float(a[i].value[k]) + to_float(r[i].value[k]);
                    sum += y * y;
                    from_float(r[i].value[k], y);
#if HOLD_FLOAT
                    x[i][k] = y;
#endif
                }
                store<VEC>(res + col, r[i]);
            }
        }
        for (int col = first + ITEMS * STEP; col < end; col += STEP) {
            const Pack<VEC> p = load<VEC>(in + col);
            Pack<VEC> q = load<VEC>(res + col);
#pragma unroll
            for (int k = 0; k < VEC; ++k) {
                const float y = to_float(p.value[k]) + to_float(q.value[k]);
                sum += y * y;
                from_float(q.value[k], y);
            }
            *reinterpret_cast<Pack<VEC>*>(res + col) = q;  // without a hint: it is read again soon
        }

        const float scale = rsqrtf(row_sum(sum, round) / d + eps);

#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int col = first + i * STEP;
            if (col < end) {
#if !HOLD_FLOAT
                float x[ITEMS][VEC];
#pragma unroll
                for (int k = 0; k < VEC; ++k) x[i][k] = to_float(r[i].value[k]);
#endif
#if WEIGHT_EARLY
                scaled(in + col, x[i], scale, w[i]);
#else
                scaled(in + col, x[i], scale, kept(weight + col));
#endif
            }
        }
        for (int col = first + ITEMS * STEP; col < end; col += STEP) {
            const Pack<VEC> q = *reinterpret_cast<const Pack<VEC>*>(res + col);
            float y[VEC];
#pragma unroll
            for (int k = 0; k < VEC; ++k) y[k] = to_float(q.value[k]);
            scaled(in + col, y, scale, kept(weight + col));
        }
        ++round;
        row += (long long)gridDim.x * BLOCK_Y;
    } while (WALKS && row - threadIdx.y < n);  // the same answer in every thread of the block
}

// Rows that begin or end between vectors hold nothing: the elements up to the first vector, vectors, the elements behind the
// last, and all of them read again. Its loops stay loops, so that these rows do not decide how many registers the
// kernel takes.
__device__ __forceinline__ void unaligned_rows(T* __restrict__ input, T* __restrict__ residual, const T* __restrict__ weight,
                                               float eps, int n, int d) {
    enum { V = 4 };
    // Whether both arrays' rows begin at the same place between two vectors; if not, all is taken element by element.
    const Address between = reinterpret_cast<Address>(input) ^ reinterpret_cast<Address>(residual);
    const bool alike = between % Pack<V>::PIECE == 0;
    int round = 0;
    long long row = (long long)blockIdx.x * BLOCK_Y + threadIdx.y;
    do {
        const int end = row < n ? d : 0;
        T* in = input + row * d;
        T* res = residual + row * d;
        const int head = alike ? min(end, elements_to_vector<V>(in)) : end;
        const int last = head + (end - head) / V * V, edges = head + end - last;
        float sum = 0.0f;
#pragma unroll 1
        for (int col = head + threadIdx.x * V; col < last; col += BLOCK_X * V) {
            const Pack<V> p = load<V>(in + col);
            Pack<V> q = load<V>(res + col);
#pragma unroll
            for (int k = 0; k < V; ++k) {
                const float y = to_float(p.value[k]) + to_float(q.value[k]);
                sum += y * y;
                from_float(q.value[k], y);
            }
            *reinterpret_cast<Pack<V>*>(res + col) = q;
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < edges; i += BLOCK_X) {
            const int col = i < head ? i : i - head + last;
            const float y = to_float(in[col]) + to_float(res[col]);
            sum += y * y;
            from_float(res[col], y);
        }

        if (BLOCK_X == 32) __syncwarp();  // a barrier in row_sum otherwise: threads read what others have written
        const float scale = rsqrtf(row_sum(sum, round) / d + eps);

        // Two at once. The second of a pair may be the row's last element once more.
#pragma unroll 1
        for (int col = threadIdx.x; col < end; col += 2 * BLOCK_X) {
            const int more = min(col + BLOCK_X, end - 1);
            const T a = res[col], b = weight[col], c = res[more], e = weight[more];
            from_float(in[col], to_float(a) * scale * to_float(b));
            from_float(in[more], to_float(c) * scale * to_float(e));
        }
        ++round;
        row += (long long)gridDim.x * BLOCK_Y;
    } while (WALKS && row - threadIdx.y < n);
}

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y, MIN_BLOCKS)
fused_add_rmsnorm(T* __restrict__ input, T* __restrict__ residual, const T* __restrict__ weight, float eps, int n, int d) {
    // The same answer in every thread.
    const Address addresses = reinterpret_cast<Address>(input) | reinterpret_cast<Address>(residual) |
                              reinterpret_cast<Address>(weight);
    if (d % VEC == 0 && addresses % PIECE == 0)
        rows(input, residual, weight, eps, n, d);
    else
        unaligned_rows(input, residual, weight, eps, n, d);
}
