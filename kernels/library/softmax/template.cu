// A row belongs to BLOCK_X threads, BLOCK_Y rows to a block. A thread holds ITEMS vectors of its row in registers, so that
// they are read once; what a longer row has beyond that is read again. Rows that begin between vectors hold nothing: theirs
// are read again too, and so are the elements before and behind them.

enum {
    WARPS = BLOCK_X / 32,
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
struct Partials {
#if ONLINE
    Part parts[WALKS ? 2 : 1][BLOCK_Y][WARPS];
#else
    float maxima[BLOCK_Y][WARPS], sums[BLOCK_Y][WARPS];
#endif
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

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y, 1)
softmax(const T* __restrict__ input, T* __restrict__ out, int n, int d) {
    using Address = unsigned long long;
    enum { PIECE = Pack<VEC>::PIECE, STEP = BLOCK_X * VEC };
    __shared__ Partials partials;
    // The same answers in every thread: whether all rows start and end on a vector, and whether those of both arrays begin
    // at the same place between two.
    const bool aligned = d % VEC == 0 && (reinterpret_cast<Address>(input) | reinterpret_cast<Address>(out)) % PIECE == 0;
    const bool alike = (reinterpret_cast<Address>(input) ^ reinterpret_cast<Address>(out)) % PIECE == 0;
    const int first = threadIdx.x * VEC;
    int round = 0;
    long long row = (long long)blockIdx.x * BLOCK_Y + threadIdx.y;
    do {
        // Threads beyond the last row have no columns, but take part in the barriers.
        const int end = row < n ? d : 0;
        const T* from = input + row * d;
        T* to = out + row * d;
        // Vectors lie from `head` to `last`, and those before `held` are held.
        const int held = aligned ? end : 0;
        int head = 0, last = end, again = first + ITEMS * STEP;
        if (!aligned) {
            head = alike ? min(end, elements_to_vector<VEC>(from)) : end;
            last = head + (end - head) / VEC * VEC;
            again = head + first;
        }
        const int edges = head + end - last;

        Pack<VEC> x[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (first + i * STEP < held) x[i] = load<VEC>(from + first + i * STEP);
        float largest = LOWEST;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (first + i * STEP < held) largest = largest_of(largest, x[i]);
#if !ONLINE
        for (int col = again; col < last; col += STEP)
            largest = largest_of(largest, load<VEC>(from + col));
#pragma unroll 1
        for (int i = threadIdx.x; i < edges; i += BLOCK_X)
            largest = fmaxf(largest, to_float(from[i < head ? i : i - head + last]));
        largest = fold(Largest{}, largest, partials.maxima);
#endif

        // Of the row's own maximum, or online of this thread's alone.
        float sum = 0.0f;
#if HOLD_EXP
        float e[ITEMS][VEC];
        const float base = largest;
#endif
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            if (first + i * STEP < held) {
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
        for (int col = again; col < last; col += STEP) {
            const Pack<VEC> more = load<VEC>(from + col);
#if ONLINE
            const float larger = largest_of(largest, more);
            sum *= exponential(largest - larger);
            largest = larger;
#endif
#pragma unroll
            for (int k = 0; k < VEC; ++k) sum += exponential(to_float(more.value[k]) - largest);
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < edges; i += BLOCK_X) {
            const float x = to_float(from[i < head ? i : i - head + last]);
#if ONLINE
            const float larger = fmaxf(largest, x);
            sum *= exponential(largest - larger);
            largest = larger;
#endif
            sum += exponential(x - largest);
        }
#if ONLINE
        const Part all = fold(Join{}, Part{largest, sum}, partials.parts[WALKS ? round & 1 : 0]);
        largest = all.largest;
        sum = all.sum;
#else
        sum = fold(Sum{}, sum, partials.sums);
#endif

        const float scale = 1.0f / sum;
#if HOLD_EXP
        const float held_scale = ONLINE ? exponential(base - largest) * scale : scale;
#endif
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            if (first + i * STEP < held) {
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
        for (int col = again; col < last; col += STEP) {
            const Pack<VEC> more = load<VEC>(from + col);
            Pack<VEC> result;
#pragma unroll
            for (int k = 0; k < VEC; ++k)
                from_float(result.value[k], exponential(to_float(more.value[k]) - largest) * scale);
            store<VEC>(to + col, result);
        }
#pragma unroll 1
        for (int i = threadIdx.x; i < edges; i += BLOCK_X) {
            const int col = i < head ? i : i - head + last;
            from_float(to[col], exponential(to_float(from[col]) - largest) * scale);
        }
        ++round;
        row += (long long)gridDim.x * BLOCK_Y;
    } while (WALKS && row - threadIdx.y < n);  // the same answer in every thread of the block
}
