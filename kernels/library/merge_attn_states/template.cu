// LANES threads share a row of one token and head; a block takes a tile of ROWS * UNROLL rows, and a thread has a vector of
// both parts of UNROLL rows in flight before it computes. Of rows that do not all start and end on a vector, the elements
// before the first vector and behind the last are taken one by one.

#include "kit/rows.cuh"

// A row: where its elements and its log-sum-exps lie.
struct Row {
    long long start;  // -1 where there is no such row
    long long lse;
};

__device__ __forceinline__ Row locate(unsigned row, int n, int h, int d) {
    if (row >= (unsigned)n * h) return {-1, 0};
#if TOKENS_FIRST
    const unsigned head = row / n, token = row % n;
#else
    const unsigned token = row / h, head = row % h;
#endif
    return {((long long)token * h + head) * d, (long long)head * n + token};
}

// The shares of the two parts, and the log-sum-exp of both.
struct Shares {
    float prefix, suffix, lse;
};

__device__ __forceinline__ Shares weigh(float p, float s) {
    const float infinity = __int_as_float(0x7f800000);
    // An infinite log-sum-exp, of either sign, says that the part is empty.
    if (p == infinity) p = -infinity;
    if (s == infinity) s = -infinity;
    const float largest = fmaxf(p, s);
    const bool empty = largest == -infinity;
#if FAST_EXP
    const float p_weight = empty ? 0.0f : __expf(p - largest), s_weight = empty ? 0.0f : __expf(s - largest);
    const float sum = empty ? 1.0f : p_weight + s_weight;
    const float scale = __fdividef(1.0f, sum);
    const float lse = __logf(sum) + largest;
#else
    const float p_weight = empty ? 0.0f : expf(p - largest), s_weight = empty ? 0.0f : expf(s - largest);
    const float sum = empty ? 1.0f : p_weight + s_weight;
    const float scale = 1.0f / sum;
    const float lse = logf(sum) + largest;
#endif
    return {p_weight * scale, s_weight * scale, lse};
}

using Vector = kit::Vector<T, VEC>;

__device__ __forceinline__ Vector merged(const Vector& p, const Vector& s, const Shares& shares) {
    Vector out;
#pragma unroll
    for (int i = 0; i < VEC; ++i) out.value[i] = T(float(p.value[i]) * shares.prefix + float(s.value[i]) * shares.suffix);
    return out;
}

// A row that starts or ends between two vectors. alike: at the same distance from one in all three arrays.
__device__ __forceinline__ void between_vectors(T* __restrict__ out, const T* __restrict__ prefix,
                                                const T* __restrict__ suffix, int d, bool alike, const Shares& shares) {
    const int head = alike ? min(d, kit::elements_to_vector<VEC>(prefix)) : d;
    const int vectors = (d - head) / VEC, single = d - vectors * VEC;
#pragma unroll 1
    for (int v = threadIdx.x; v < vectors; v += LANES) {
        const int at = head + v * VEC;
        kit::store<CACHE>(out + at, merged(kit::load<VEC, CACHE>(prefix + at), kit::load<VEC, CACHE>(suffix + at), shares));
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < single; i += LANES) {
        const int at = i < head ? i : i + vectors * VEC;
        out[at] = T(float(prefix[at]) * shares.prefix + float(suffix[at]) * shares.suffix);
    }
}

__device__ __forceinline__ void tile_rows(T* __restrict__ output, float* __restrict__ output_lse,
                                          const T* __restrict__ prefix, const float* __restrict__ prefix_lse,
                                          const T* __restrict__ suffix, const float* __restrict__ suffix_lse,
                                          unsigned first, int n, int h, int d, bool aligned, bool alike) {
    Row rows[UNROLL];
    float p_lse[UNROLL], s_lse[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        rows[u] = locate(first + u * ROWS + threadIdx.y, n, h, d);
        p_lse[u] = rows[u].start >= 0 ? prefix_lse[rows[u].lse] : 0.0f;
        s_lse[u] = rows[u].start >= 0 ? suffix_lse[rows[u].lse] : 0.0f;
    }
    int col = threadIdx.x * VEC;
    Vector p[UNROLL], s[UNROLL];
    const auto fetch_columns = [&](int end) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (rows[u].start >= 0 && col < end) {
                p[u] = kit::load<VEC, CACHE>(prefix + rows[u].start + col);
                s[u] = kit::load<VEC, CACHE>(suffix + rows[u].start + col);
            }
        }
    };
    // The elements do not depend on the shares: asked for first, both are on their way at once.
    if (LOADS_FIRST) fetch_columns(aligned ? d : 0);
    Shares shares[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        shares[u] = weigh(p_lse[u], s_lse[u]);
        if (threadIdx.x == 0 && rows[u].start >= 0) output_lse[rows[u].lse] = shares[u].lse;
    }
    if (!aligned) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (rows[u].start >= 0)
                between_vectors(output + rows[u].start, prefix + rows[u].start, suffix + rows[u].start, d, alike, shares[u]);
        return;
    }
    if (!LOADS_FIRST) fetch_columns(d);
    while (col < d) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (rows[u].start >= 0) kit::store<CACHE>(output + rows[u].start + col, merged(p[u], s[u], shares[u]));
        }
        col += LANES * VEC;
        fetch_columns(d);
    }
}

extern "C" __global__ void __launch_bounds__(LANES * ROWS)
merge_attn_states(T* __restrict__ output, float* __restrict__ output_lse, const T* __restrict__ prefix_output,
                  const float* __restrict__ prefix_lse, const T* __restrict__ suffix_output,
                  const float* __restrict__ suffix_lse, int n, int h, int d) {
    constexpr unsigned TILE = ROWS * UNROLL;
    const unsigned tiles = ((unsigned)n * h + TILE - 1) / TILE;
    // Vectors need rows that start and end on one.
    const bool alike = kit::on_vectors<T, VEC>(output, prefix_output, suffix_output);
    const bool aligned = VEC == 1 || (d % VEC == 0 && alike);
    kit::TileOfBlock<WALK> at;
    do {
        tile_rows(output, output_lse, prefix_output, prefix_lse, suffix_output, suffix_lse, at.tile * TILE, n, h, d, aligned,
                  alike);
    } while (at.next(tiles));
}
