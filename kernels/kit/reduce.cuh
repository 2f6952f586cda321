// Reductions of a warp, of some of its lanes, and of the threads of a row.

namespace kit {

// What is joined: any associative operator()(X, X). X: 4 bytes, or a struct of such.
struct Sum { template <class X> __device__ __forceinline__ X operator()(X a, X b) const { return a + b; } };
struct Largest {
    __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
    __device__ __forceinline__ unsigned int operator()(unsigned int a, unsigned int b) const { return max(a, b); }
};

// The x of the lane whose number differs by `step`, a power of two.
template <class X> __device__ __forceinline__ X from_lane(X x, int step) {
    if constexpr (sizeof(X) == 4) {
        return __shfl_xor_sync(0xffffffffu, x, step);
    } else {
        X other;
#pragma unroll
        for (int i = 0; i < sizeof(X) / 4; ++i)
            reinterpret_cast<float*>(&other)[i] = __shfl_xor_sync(0xffffffffu, reinterpret_cast<const float*>(&x)[i], step);
        return other;
    }
}

// Over LANES neighbouring lanes (a power of two up to 32), for all of them; the whole warp takes part. log2(LANES) shuffles
// for each 4 bytes.
template <int LANES, class Op, class X> __device__ __forceinline__ X fold_lanes(X x, Op op) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x = op(x, from_lane(x, step));
    return x;
}

// The same of a whole warp whose lanes repeat what N neighbours have.
template <int N, class Op, class X> __device__ __forceinline__ X fold_repeated(X x, Op op) { return fold_lanes<N>(x, op); }
// Whole numbers by the warp's own reduction, one instruction from compute capability 8.0 on.
template <int N> __device__ __forceinline__ unsigned int fold_repeated(unsigned int x, Largest op) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, x);
#else
    return fold_lanes<N>(x, op);
#endif
}

// Over the THREADS threads of a row, for all of them, by way of a shared memory with a place for each warp of the row;
// threadIdx.x is the thread of the row. All threads of the block take part. THREADS: a power of two from 32 on; a row of one
// warp needs no memory and no barrier. One barrier a call is enough where the next call has another memory: whoever writes a
// memory again has passed the barrier behind its last reading.
template <int THREADS, class Op, class X> __device__ __forceinline__ X fold_row(X x, X (&partial)[THREADS / 32], Op op) {
    x = fold_repeated<32>(x, op);
    if (THREADS > 32) {
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
        __syncthreads();
        x = fold_repeated<THREADS / 32>(partial[threadIdx.x % (THREADS / 32)], op);
    }
    return x;
}

// Below every number but finite: the difference of two infinities would be none.
#define KIT_LOWEST (-3.4028235e38f)
// Online softmax: the largest of some numbers, and the sum of their exponentials relative to it. FAST: the hardware's
// exponential, a few units in the last place off.
template <bool FAST> __device__ __forceinline__ float exponential(float x) { return FAST ? __expf(x) : expf(x); }
struct Exponentials { float largest, sum; };
template <bool FAST> struct JoinExponentials {
    __device__ __forceinline__ Exponentials operator()(Exponentials a, Exponentials b) const {
        const float largest = fmaxf(a.largest, b.largest);
        return {largest, a.sum * exponential<FAST>(a.largest - largest) + b.sum * exponential<FAST>(b.largest - largest)};
    }
};

// Moments: how many numbers, their mean, and the sum of their squared distances from it; joined as by Chan, Golub and LeVeque
// (1979). A difference of sums of squares would lose the variance where the mean is far larger.
struct Moments { float count, mean, squares; };
struct JoinMoments {
    __device__ __forceinline__ Moments operator()(Moments a, Moments b) const {
        const float count = a.count + b.count, apart = b.mean - a.mean;
        const float share = count > 0.0f ? b.count / count : 0.0f;
        return {count, a.mean + apart * share, a.squares + b.squares + apart * apart * a.count * share};
    }
};

}  // namespace kit
