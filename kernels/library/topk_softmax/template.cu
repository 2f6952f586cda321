// LANES threads of a warp share a row, ROWS rows to a block. Each thread holds ITEMS vectors of its row as numbers in the
// order of the logits; what a longer row has beyond that is read again for every choice. What was chosen before is what
// comes no later in the order than the last choice, so that nothing has to be marked.

#include "kit/reduce.cuh"
#include "kit/vectors.cuh"

enum { NONE = 0 };

// Whole numbers in the order of floats; none of a number is NONE.
__device__ __forceinline__ unsigned int ordered(float x) {
    const unsigned int bits = __float_as_uint(x + 0.0f);  // one zero of both
    return bits ^ (static_cast<int>(bits) < 0 ? 0xffffffffu : 0x80000000u);
}
__device__ __forceinline__ float logit(unsigned int order) {
    return __uint_as_float(order ^ (static_cast<int>(order) < 0 ? 0x80000000u : 0xffffffffu));
}

// A logit and its column: larger logits first, of equal ones the lower column.
struct Choice {
    unsigned int order;
    int column;
};
__device__ __forceinline__ bool before(Choice a, Choice b) {
    return a.order > b.order || (a.order == b.order && a.column < b.column);
}

// The lanes of this thread's row.
__device__ __forceinline__ unsigned int row_mask() {
    return LANES == 32 ? 0xffffffffu : ((1u << (LANES % 32)) - 1u) << (threadIdx.x / LANES * LANES % 32);
}

// The first choice of a row's threads, for all of them.
__device__ __forceinline__ Choice first_of_row(Choice mine) {
#if REDUCE && __CUDA_ARCH__ >= 800
    // The largest logit, then the lowest column that has it.
    const unsigned int mask = row_mask(), order = __reduce_max_sync(mask, mine.order);
    return {order, static_cast<int>(__reduce_min_sync(mask, mine.order == order ? mine.column : 0x7fffffffu))};
#else
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        const Choice other{__shfl_xor_sync(0xffffffffu, mine.order, step), __shfl_xor_sync(0xffffffffu, mine.column, step)};
        if (before(other, mine)) mine = other;
    }
    return mine;
#endif
}

__device__ __forceinline__ float power(float x) { return kit::exponential<FAST_EXP>(x); }

// V: elements of an access; 1 where rows do not all start and end on a vector. A thread then holds as many elements.
template <int V>
__device__ __forceinline__ void choose(const T* __restrict__ logits, float* __restrict__ weights, int* __restrict__ experts,
                                       int n, int e, int k) {
    enum { PARTS = ITEMS * VEC / V, APART = LANES * V };
    const int lane = threadIdx.x % LANES, first = lane * V;
    const long long row = (long long)blockIdx.x * ROWS + threadIdx.x / LANES;
    // Threads beyond the last row have no columns, but take part in what warps do together.
    const int end = row < n ? e : 0;
    const T* from = logits + row * e;

    unsigned int held[PARTS][V];
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
        const int col = first + i * APART;
        if (col < end) {
            const kit::Vector<T, V> x = kit::load<V, CACHE>(from + col);
#pragma unroll
            for (int v = 0; v < V; ++v) held[i][v] = ordered(float(x.value[v]));
        } else {
#pragma unroll
            for (int v = 0; v < V; ++v) held[i][v] = NONE;
        }
    }

    Choice last{0xffffffffu, -1};  // nothing comes before it
    float largest = 0.0f, inverse = 0.0f, weight = 0.0f;
    int expert = 0;
    for (int turn = 0; turn < k; ++turn) {
        Choice best{NONE, 0x7fffffff};
        // Columns of a thread ascend, so that of equal logits the first one stays.
#pragma unroll
        for (int i = 0; i < PARTS; ++i)
#pragma unroll
            for (int v = 0; v < V; ++v) {
                const Choice one{held[i][v], first + i * APART + v};
                if (before(last, one) && one.order > best.order) best = one;
            }
#pragma unroll 1
        for (int col = first + PARTS * APART; col < end; col += APART) {
            const kit::Vector<T, V> x = kit::load<V, CACHE>(from + col);
#pragma unroll
            for (int v = 0; v < V; ++v) {
                const Choice one{ordered(float(x.value[v])), col + v};
                if (before(last, one) && one.order > best.order) best = one;
            }
        }
        last = first_of_row(best);

        if (turn == 0) {
            // The first choice is the row's maximum, which the softmax needs.
            largest = logit(last.order);
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < PARTS; ++i)
#pragma unroll
                for (int v = 0; v < V; ++v)
                    if (first + i * APART < end) sum += power(logit(held[i][v]) - largest);
#pragma unroll 1
            for (int col = first + PARTS * APART; col < end; col += APART) {
                const kit::Vector<T, V> x = kit::load<V, CACHE>(from + col);
#pragma unroll
                for (int v = 0; v < V; ++v) sum += power(float(x.value[v]) - largest);
            }
            inverse = 1.0f / kit::fold_lanes<LANES>(sum, kit::Sum{});
        }
        // A lane keeps one choice, so that those of LANES turns are written side by side.
        if (turn % LANES == lane) {
            weight = power(logit(last.order) - largest) * inverse;
            expert = last.column;
        }
        if ((turn % LANES == LANES - 1 || turn == k - 1) && row < n && lane <= turn % LANES) {
            const long long at = row * k + turn - turn % LANES + lane;
            weights[at] = weight;
            experts[at] = expert;
        }
    }
}

extern "C" __global__ void __launch_bounds__(LANES * ROWS)
topk_softmax(const T* __restrict__ logits, float* __restrict__ weights, int* __restrict__ experts, int n, int e, int k) {
    if (e % VEC == 0 && kit::on_vectors<T, VEC>(logits))
        choose<VEC>(logits, weights, experts, n, e, k);
    else
        choose<1>(logits, weights, experts, n, e, k);
}
