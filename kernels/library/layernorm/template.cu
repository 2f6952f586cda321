// A row belongs to BLOCK_X threads, BLOCK_Y rows to a block. A thread holds ITEMS vectors of its row in registers, so that
// they are read once; what a longer row has beyond that is read again.

using Address = unsigned long long;
enum {
    STEP = BLOCK_X * VEC,
    WARPS = BLOCK_X / 32,
    WALKS = GRID_CAP > 0,  // a block goes on to further rows
};

// Of some numbers: how many they are, their mean, and the sum of their squared distances from it.
struct Part { float count, mean, squares; };

// What the warps of a row leave for each other.
union Partials {
    struct { float sums[BLOCK_Y][WARPS], squares[BLOCK_Y][WARPS]; } in_turn;
#if ONE_PASS
    Part together[WALKS ? 2 : 1][BLOCK_Y][WARPS];
#endif
};

// Of two sets of numbers as of one (Chan, Golub and LeVeque 1979). A difference of sums of squares would lose the variance
// where the mean is far larger.
__device__ __forceinline__ Part both(Part a, Part b) {
    const float count = a.count + b.count, apart = b.mean - a.mean;
    const float share = count > 0.0f ? b.count / count : 0.0f;
    return {count, a.mean + apart * share, a.squares + b.squares + apart * apart * a.count * share};
}

struct Join {
    __device__ __forceinline__ Part operator()(Part x, int step) const {
        return both(x, {__shfl_xor_sync(0xffffffffu, x.count, step), __shfl_xor_sync(0xffffffffu, x.mean, step),
                        __shfl_xor_sync(0xffffffffu, x.squares, step)});
    }
};
struct Sum {
    __device__ __forceinline__ float operator()(float x, int step) const {
        return x + __shfl_xor_sync(0xffffffffu, x, step);
    }
};

// Folds x over the BLOCK_X threads of a row, for all of them, by way of `partial`: one value for each warp. Whoever calls
// it again takes other memory than the last time; then one barrier a call is enough, as whoever writes a memory again has
// passed the barrier behind its last reading.
template <typename F, typename X> __device__ __forceinline__ X fold(F f, X x, X (&partial)[BLOCK_Y][WARPS]) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = f(x, step);
    if (BLOCK_X > 32) {
        X(&mine)[WARPS] = partial[threadIdx.y];
        if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32] = x;
        __syncthreads();
        x = mine[threadIdx.x % WARPS];
#pragma unroll
        for (int step = WARPS / 2; step > 0; step /= 2) x = f(x, step);
    }
    return x;
}

template <typename X, int N> __device__ __forceinline__ float sum_of(const X (&x)[N]) {
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < N; ++k) sum += to_float(x[k]);
    return sum;
}

template <typename X, int N> __device__ __forceinline__ float squares_of(const X (&x)[N], float mean) {
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < N; ++k) {
        const float away = to_float(x[k]) - mean;
        squares += away * away;
    }
    return squares;
}

// Weight and bias are the same for every row: they may stay in every cache.
__device__ __forceinline__ Pack<VEC> kept(const T* from) { return *reinterpret_cast<const Pack<VEC>*>(from); }

template <typename X>
__device__ __forceinline__ void scaled(T* to, const X (&x)[VEC], float mean, float scale, const Pack<VEC>& weight,
                                       const Pack<VEC>& bias) {
    Pack<VEC> result;
#pragma unroll
    for (int k = 0; k < VEC; ++k)
        from_float(result.value[k],
                   (to_float(x[k]) - mean) * scale * to_float(weight.value[k]) + to_float(bias.value[k]));
    store<VEC>(to, result);
}

// Rows that all start and end on a vector.
__device__ __forceinline__ void rows(const T* __restrict__ input, const T* __restrict__ weight, const T* __restrict__ bias,
                                     T* __restrict__ out, float eps, int n, int d, Partials& partials) {
    const int first = threadIdx.x * VEC;
#if WEIGHT_EARLY
    Pack<VEC> w[ITEMS], b[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        if (first + i * STEP < d) {
            w[i] = kept(weight + first + i * STEP);
            b[i] = kept(bias + first + i * STEP);
        }
    }
#endif
    int round = 0;
    long long row = (long long)blockIdx.x * BLOCK_Y + threadIdx.y;
    do {
        // Threads beyond the last row have no columns, but take part in the barriers.
        const int end = row < n ? d : 0;
        const T* from = input + row * d;
        T* to = out + row * d;

        Pack<VEC> loaded[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (first + i * STEP < end) loaded[i] = load<VEC>(from + first + i * STEP);
#if HOLD_FLOAT
        struct { float value[VEC]; } x[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
#pragma unroll
            for (int k = 0; k < VEC; ++k) x[i].value[k] = to_float(loaded[i].value[k]);
#else
        Pack<VEC>(&x)[ITEMS] = loaded;
#endif

        // Of the columns that this thread holds, then of all of them.
        float sum = 0.0f, squares = 0.0f;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (first + i * STEP < end) sum += sum_of(x[i].value);
#if ONE_PASS
        const int vectors = first < end ? min((end - first + STEP - 1) / STEP, ITEMS) : 0;
        float mean = vectors > 0 ? sum / (vectors * VEC) : 0.0f;
#else
        for (int col = first + ITEMS * STEP; col < end; col += STEP) sum += sum_of(load<VEC>(from + col).value);
        const float mean = fold(Sum{}, sum, partials.in_turn.sums) / d;
#endif
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (first + i * STEP < end) squares += squares_of(x[i].value, mean);
#if ONE_PASS
        Part part{(float)(vectors * VEC), mean, squares};
        for (int col = first + ITEMS * STEP; col < end; col += STEP) {
            const Pack<VEC> more = load<VEC>(from + col);
            const float mean_of_more = sum_of(more.value) / VEC;
            part = both(part, {VEC, mean_of_more, squares_of(more.value, mean_of_more)});
        }
        part = fold(Join{}, part, partials.together[WALKS ? round & 1 : 0]);
        mean = part.mean;
        squares = part.squares;
#else
        for (int col = first + ITEMS * STEP; col < end; col += STEP)
            squares += squares_of(load<VEC>(from + col).value, mean);
        squares = fold(Sum{}, squares, partials.in_turn.squares);
#endif

        const float scale = rsqrtf(squares / d + eps);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int col = first + i * STEP;
            if (col < end) {
#if WEIGHT_EARLY
                scaled(to + col, x[i].value, mean, scale, w[i], b[i]);
#else
                scaled(to + col, x[i].value, mean, scale, kept(weight + col), kept(bias + col));
#endif
            }
        }
        for (int col = first + ITEMS * STEP; col < end; col += STEP)
            scaled(to + col, load<VEC>(from + col).value, mean, scale, kept(weight + col), kept(bias + col));
        ++round;
        row += (long long)gridDim.x * BLOCK_Y;
    } while (WALKS && row - threadIdx.y < n);  // the same answer in every thread of the block
}

// Rows that begin or end between vectors hold nothing and are read three times: the elements up to the first vector,
// vectors, and the elements behind the last. Their mean comes before their variance in every configuration. The loops stay
// loops, so that these rows decide neither the kernel's registers nor the time to compile it.
__device__ __forceinline__ void unaligned_rows(const T* __restrict__ input, const T* __restrict__ weight,
                                               const T* __restrict__ bias, T* __restrict__ out, float eps, int n, int d,
                                               Partials& partials) {
    enum { V = 4 };
    // Whether both arrays' rows begin at the same place between two vectors; if not, all is taken element by element.
    const Address between = reinterpret_cast<Address>(input) ^ reinterpret_cast<Address>(out);
    const bool alike = between % Pack<V>::PIECE == 0;
    long long row = (long long)blockIdx.x * BLOCK_Y + threadIdx.y;
    do {
        const int end = row < n ? d : 0;
        const T* from = input + row * d;
        T* to = out + row * d;
        const int head = alike ? min(end, elements_to_vector<V>(from)) : end;
        const int last = head + (end - head) / V * V, edges = head + end - last;

        float sum = 0.0f;
#pragma unroll 4
        for (int col = head + threadIdx.x * V; col < last; col += BLOCK_X * V) sum += sum_of(load<V>(from + col).value);
#pragma unroll 1
        for (int i = threadIdx.x; i < edges; i += BLOCK_X) sum += to_float(from[i < head ? i : i - head + last]);
        const float mean = fold(Sum{}, sum, partials.in_turn.sums) / d;

        float squares = 0.0f;
#pragma unroll 4
        for (int col = head + threadIdx.x * V; col < last; col += BLOCK_X * V)
            squares += squares_of(load<V>(from + col).value, mean);
#pragma unroll 1
        for (int i = threadIdx.x; i < edges; i += BLOCK_X) {
            const float away = to_float(from[i < head ? i : i - head + last]) - mean;
            squares += away * away;
        }
        const float scale = rsqrtf(fold(Sum{}, squares, partials.in_turn.squares) / d + eps);

        // Weight and bias, which begin elsewhere between vectors, come element by element.
#pragma unroll 2
        for (int col = head + threadIdx.x * V; col < last; col += BLOCK_X * V) {
            Pack<V> p = load<V>(from + col);
#pragma unroll
            for (int k = 0; k < V; ++k)
                from_float(p.value[k], (to_float(p.value[k]) - mean) * scale * to_float(weight[col + k]) +
                                           to_float(bias[col + k]));
            store<V>(to + col, p);
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < edges; i += BLOCK_X) {
            const int col = i < head ? i : i - head + last;
            from_float(to[col], (to_float(from[col]) - mean) * scale * to_float(weight[col]) + to_float(bias[col]));
        }
        row += (long long)gridDim.x * BLOCK_Y;
    } while (WALKS && row - threadIdx.y < n);
}

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y, 1)
layernorm(const T* __restrict__ input, const T* __restrict__ weight, const T* __restrict__ bias, T* __restrict__ out,
          float eps, int n, int d) {
    __shared__ Partials partials;
    // The same answer in every thread.
    const Address addresses = reinterpret_cast<Address>(input) | reinterpret_cast<Address>(weight) |
                              reinterpret_cast<Address>(bias) | reinterpret_cast<Address>(out);
    if (d % VEC == 0 && addresses % Pack<VEC>::PIECE == 0)
        rows(input, weight, bias, out, eps, n, d, partials);
    else
        unaligned_rows(input, weight, bias, out, eps, n, d, partials);
}
