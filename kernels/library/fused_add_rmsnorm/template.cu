// A row belongs to BLOCK_X threads, BLOCK_Y rows to a block. A thread holds ITEMS vectors of its row in registers from the
// sum of squares to the scaling, so that they are read once; what a longer row has beyond that is read again. Rows that
// begin between vectors hold nothing: theirs are read again too, and so are the elements before and behind them.

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

// The weight is the same for every row: it may stay in every cache.
__device__ __forceinline__ Pack<VEC> kept(const T* from) { return *reinterpret_cast<const Pack<VEC>*>(from); }

__device__ __forceinline__ void scaled(T* to, const float (&x)[VEC], float scale, const Pack<VEC>& weight) {
    Pack<VEC> out;
#pragma unroll
    for (int k = 0; k < VEC; ++k) from_float(out.value[k], x[k] * scale * to_float(weight.value[k]));
    store<VEC>(to, out);
}

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y, MIN_BLOCKS)
fused_add_rmsnorm(T* __restrict__ input, T* __restrict__ residual, const T* __restrict__ weight, float eps, int n, int d) {
    using Address = unsigned long long;
    enum { PIECE = Pack<VEC>::PIECE, STEP = BLOCK_X * VEC };
    // The same answers in every thread: whether all rows start and end on a vector, and whether both arrays' rows begin at
    // the same place between two.
    const Address addresses = reinterpret_cast<Address>(input) | reinterpret_cast<Address>(residual) |
                              reinterpret_cast<Address>(weight);
    const bool aligned = d % VEC == 0 && addresses % PIECE == 0;
    const bool alike = (reinterpret_cast<Address>(input) ^ reinterpret_cast<Address>(residual)) % PIECE == 0;
    const int first = threadIdx.x * VEC;
#if WEIGHT_EARLY
    Pack<VEC> w[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i)
        if (first + i * STEP < (aligned ? d : 0)) w[i] = kept(weight + first + i * STEP);
#endif
    int round = 0;
    long long row = (long long)blockIdx.x * BLOCK_Y + threadIdx.y;
    do {
        // Threads beyond the last row have no columns, but take part in the barriers.
        const int end = row < n ? d : 0;
        T* in = input + row * d;
        T* res = residual + row * d;
        // Vectors lie from `head` to `last`, and those before `held` are held.
        const int held = aligned ? end : 0;
        int head = 0, last = end, again = first + ITEMS * STEP;
        bool whole = true;  // the weight's elements at those vectors are vectors
        if (!aligned) {
            head = alike ? min(end, elements_to_vector<VEC>(in)) : end;
            last = head + (end - head) / VEC * VEC;
            again = head + first;
            whole = reinterpret_cast<Address>(weight + head) % PIECE == 0;
        }
        const int edges = head + end - last;
        float sum = 0.0f;

        Pack<VEC> a[ITEMS], r[ITEMS];
#if HOLD_FLOAT
        float x[ITEMS][VEC];
#endif
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int col = first + i * STEP;
            if (col < held) {
                a[i] = load<VEC>(in + col);
                r[i] = load<VEC>(res + col);
            }
        }
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int col = first + i * STEP;
            if (col < held) {
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
        for (int col = again; col < last; col += STEP) {
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
#pragma unroll 1
        for (int i = threadIdx.x; i < edges; i += BLOCK_X) {
            const int col = i < head ? i : i - head + last;
            const float y = to_float(in[col]) + to_float(res[col]);
            sum += y * y;
            from_float(res[col], y);
        }

        const float scale = rsqrtf(row_sum(sum, round) / d + eps);

#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int col = first + i * STEP;
            if (col < held) {
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
        for (int col = again; col < last; col += STEP) {
            Pack<VEC> factors;
            if (whole) {
                factors = kept(weight + col);
            } else {
#pragma unroll
                for (int k = 0; k < VEC; ++k) factors.value[k] = weight[col + k];
            }
            const Pack<VEC> q = *reinterpret_cast<const Pack<VEC>*>(res + col);
            float y[VEC];
#pragma unroll
            for (int k = 0; k < VEC; ++k) y[k] = to_float(q.value[k]);
            scaled(in + col, y, scale, factors);
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < edges; i += BLOCK_X) {
            const int col = i < head ? i : i - head + last;
            from_float(in[col], to_float(res[col]) * scale * to_float(weight[col]));
        }
        ++round;
        row += (long long)gridDim.x * BLOCK_Y;
    } while (WALKS && row - threadIdx.y < n);  // the same answer in every thread of the block
}
