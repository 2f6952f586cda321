// A row belongs to BLOCK_X threads, BLOCK_Y rows to a block. A thread holds ITEMS vectors of its row in registers, so that
// they are read once; what a longer row has beyond that is read again.

using Address = unsigned long long;
enum {
    STEP = BLOCK_X * VEC,
    WARPS = BLOCK_X / 32,
    FEW = 4,  // elements of a thread, of rows that no vector divides and that are read once
    WALKS = GRID_CAP > 0,  // a block goes on to further rows
};
// Below every maximum, but finite: the difference of two infinities would be no number.
#define LOWEST (-3.4028235e38f)

__device__ __forceinline__ float exponential(float x) {
#if FAST_EXP
    return __expf(x);
#else
    return expf(x);
#endif
}

// A maximum, and the sum of exponentials relative to it.
struct Part { float largest, sum; };

// What the warps of a row leave for each other.
union Partials {
    struct { float maxima[BLOCK_Y][WARPS], sums[BLOCK_Y][WARPS]; } in_turn;
    Part together[ONLINE && WALKS ? 2 : 1][BLOCK_Y][WARPS];
};

__device__ __forceinline__ Part both(Part a, Part b) {
    const float largest = fmaxf(a.largest, b.largest);
    return {largest, a.sum * exponential(a.largest - largest) + b.sum * exponential(b.largest - largest)};
}

struct Join {
    __device__ __forceinline__ Part operator()(Part x, int step) const {
        return both(x, {__shfl_xor_sync(0xffffffffu, x.largest, step), __shfl_xor_sync(0xffffffffu, x.sum, step)});
    }
};
struct Largest {
    __device__ __forceinline__ float operator()(float x, int step) const {
        return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
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
        X* mine = partial[threadIdx.y];
        if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32] = x;
        __syncthreads();
        x = mine[threadIdx.x % WARPS];
#pragma unroll
        for (int step = WARPS / 2; step > 0; step /= 2) x = f(x, step);
    }
    return x;
}

__device__ __forceinline__ float largest_of(float largest, const Pack<VEC>& pack) {
#pragma unroll
    for (int k = 0; k < VEC; ++k) largest = fmaxf(largest, to_float(pack.value[k]));
    return largest;
}

// Rows that all start and end on a vector.
__device__ __forceinline__ void rows(const T* __restrict__ input, T* __restrict__ out, int n, int d, Partials& partials) {
    const int first = threadIdx.x * VEC;
    int round = 0;
    long long row = (long long)blockIdx.x * BLOCK_Y + threadIdx.y;
    do {
        // Threads beyond the last row have no columns, but take part in the barriers.
        const int end = row < n ? d : 0;
        const T* from = input + row * d;
        T* to = out + row * d;

        Pack<VEC> x[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (first + i * STEP < end) x[i] = load<VEC>(from + first + i * STEP);
        float largest = LOWEST;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (first + i * STEP < end) largest = largest_of(largest, x[i]);
#if !ONLINE
        for (int col = first + ITEMS * STEP; col < end; col += STEP)
            largest = largest_of(largest, load<VEC>(from + col));
        largest = fold(Largest{}, largest, partials.in_turn.maxima);
#endif

        // Of the row's own maximum, or online of this thread's alone.
        float sum = 0.0f;
#if HOLD_EXP
        float e[ITEMS][VEC];
        const float base = largest;
#endif
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            if (first + i * STEP < end) {
#pragma unroll
                for (int k = 0; k < VEC; ++k) {
                    const float y = exponential(to_float(x[i].value[k]) - largest);
                    sum += y;
#if HOLD_EXP
                    e[i][k] = y;
#endif
                }
            }
        }
        for (int col = first + ITEMS * STEP; col < end; col += STEP) {
            const Pack<VEC> more = load<VEC>(from + col);
#if ONLINE
            const float larger = largest_of(largest, more);
            sum *= exponential(largest - larger);
            largest = larger;
#endif
#pragma unroll
            for (int k = 0; k < VEC; ++k) sum += exponential(to_float(more.value[k]) - largest);
        }
#if ONLINE
        const Part all = fold(Join{}, Part{largest, sum}, partials.together[WALKS ? round & 1 : 0]);
        largest = all.largest;
        sum = all.sum;
#else
        sum = fold(Sum{}, sum, partials.in_turn.sums);
#endif

        const float scale = 1.0f / sum;
#if HOLD_EXP
        const float held_scale = ONLINE ? exponential(base - largest) * scale : scale;
#endif
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            if (first + i * STEP < end) {
                Pack<VEC> result;
#pragma unroll
                for (int k = 0; k < VEC; ++k) {
#if HOLD_EXP
                    from_float(result.value[k], e[i][k] * held_scale);
#else
                    from_float(result.value[k], exponential(to_float(x[i].value[k]) - largest) * scale);
#endif
                }
                store<VEC>(to + first + i * STEP, result);
            }
        }
        for (int col = first + ITEMS * STEP; col < end; col += STEP) {
            const Pack<VEC> more = load<VEC>(from + col);
            Pack<VEC> result;
#pragma unroll
            for (int k = 0; k < VEC; ++k)
                from_float(result.value[k], exponential(to_float(more.value[k]) - largest) * scale);
            store<VEC>(to + col, result);
        }
        ++round;
        row += (long long)gridDim.x * BLOCK_Y;
    } while (WALKS && row - threadIdx.y < n);  // the same answer in every thread of the block
}

// Rows that begin or end between vectors hold nothing and are read three times: the elements up to the first vector,
// vectors, and the elements behind the last. Their maximum comes before their sum in every configuration. The loops stay
// loops, so that these rows decide neither the kernel's registers nor the time to compile it.
__device__ __forceinline__ void unaligned_rows(const T* __restrict__ input, T* __restrict__ out, int n, int d,
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

        float largest = LOWEST;
#pragma unroll 4
        for (int col = head + threadIdx.x * V; col < last; col += BLOCK_X * V) {
            const Pack<V> p = load<V>(from + col);
#pragma unroll
            for (int k = 0; k < V; ++k) largest = fmaxf(largest, to_float(p.value[k]));
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < edges; i += BLOCK_X)
            largest = fmaxf(largest, to_float(from[i < head ? i : i - head + last]));
        largest = fold(Largest{}, largest, partials.in_turn.maxima);

        float sum = 0.0f;
#pragma unroll 4
        for (int col = head + threadIdx.x * V; col < last; col += BLOCK_X * V) {
            const Pack<V> p = load<V>(from + col);
#pragma unroll
            for (int k = 0; k < V; ++k) sum += exponential(to_float(p.value[k]) - largest);
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < edges; i += BLOCK_X)
            sum += exponential(to_float(from[i < head ? i : i - head + last]) - largest);
        const float scale = 1.0f / fold(Sum{}, sum, partials.in_turn.sums);

#pragma unroll 2
        for (int col = head + threadIdx.x * V; col < last; col += BLOCK_X * V) {
            Pack<V> p = load<V>(from + col);
#pragma unroll
            for (int k = 0; k < V; ++k) from_float(p.value[k], exponential(to_float(p.value[k]) - largest) * scale);
            store<V>(to + col, p);
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < edges; i += BLOCK_X) {
            const int col = i < head ? i : i - head + last;
            from_float(to[col], exponential(to_float(from[col]) - largest) * scale);
        }
        row += (long long)gridDim.x * BLOCK_Y;
    } while (WALKS && row - threadIdx.y < n);
}

// Of such rows those of a few elements for each thread, which are read once: what three readings cost shows most there.
__device__ __forceinline__ void short_rows(const T* __restrict__ input, T* __restrict__ out, int n, int d,
                                           Partials& partials) {
    long long row = (long long)blockIdx.x * BLOCK_Y + threadIdx.y;
    do {
        const int end = row < n ? d : 0;
        const T* from = input + row * d;
        T* to = out + row * d;
        float x[FEW];
        float largest = LOWEST;
#pragma unroll
        for (int i = 0; i < FEW; ++i) {
            const int col = threadIdx.x + i * BLOCK_X;
            if (col < end) {
                x[i] = to_float(from[col]);
                largest = fmaxf(largest, x[i]);
            }
        }
        largest = fold(Largest{}, largest, partials.in_turn.maxima);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < FEW; ++i) {
            if (threadIdx.x + i * BLOCK_X < end) {
                x[i] = exponential(x[i] - largest);
                sum += x[i];
            }
        }
        const float scale = 1.0f / fold(Sum{}, sum, partials.in_turn.sums);
#pragma unroll
        for (int i = 0; i < FEW; ++i) {
            const int col = threadIdx.x + i * BLOCK_X;
            if (col < end) from_float(to[col], x[i] * scale);
        }
        row += (long long)gridDim.x * BLOCK_Y;
    } while (WALKS && row - threadIdx.y < n);
}

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y, 1)
softmax(const T* __restrict__ input, T* __restrict__ out, int n, int d) {
    __shared__ Partials partials;
    // The same answer in every thread.
    const Address addresses = reinterpret_cast<Address>(input) | reinterpret_cast<Address>(out);
    if (d % VEC == 0 && addresses % Pack<VEC>::PIECE == 0)
        rows(input, out, n, d, partials);
    else if (d <= FEW * BLOCK_X)
        short_rows(input, out, n, d, partials);
    else
        unaligned_rows(input, out, n, d, partials);
}
