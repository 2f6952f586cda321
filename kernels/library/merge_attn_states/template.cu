// LANES threads share a row of one token and head; a block takes a tile of ROWS * UNROLL rows, and a thread has a vector of
// both parts of UNROLL rows in flight before it computes. Rows that do not all start and end on a vector are taken element
// by element.

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

__device__ __forceinline__ void tile_rows(T* __restrict__ output, float* __restrict__ output_lse,
                                          const T* __restrict__ prefix, const float* __restrict__ prefix_lse,
                                          const T* __restrict__ suffix, const float* __restrict__ suffix_lse,
                                          unsigned first, int n, int h, int d, bool aligned) {
    Row rows[UNROLL];
    float p_lse[UNROLL], s_lse[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
        rows[u] = locate(first + u * ROWS + threadIdx.y, n, h, d);
        p_lse[u] = rows[u].start >= 0 ? prefix_lse[rows[u].lse] : 0.0f;
        s_lse[u] = rows[u].start >= 0 ? suffix_lse[rows[u].lse] : 0.0f;
    }
    int col = threadIdx.x * VEC;
    Pack<VEC> p[UNROLL], s[UNROLL];
    const auto fetch_columns = [&](int end) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (rows[u].start >= 0 && col < end) {
                p[u] = load<VEC>(prefix + rows[u].start + col);
                s[u] = load<VEC>(suffix + rows[u].start + col);
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
        // Two at once. The second of a pair may be the row's last element once more.
#pragma unroll 1
        for (int i = threadIdx.x; i < d; i += 2 * LANES) {
            const int more = min(i + LANES, d - 1);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                if (rows[u].start >= 0) {
                    const T *p = prefix + rows[u].start, *s = suffix + rows[u].start;
                    T* out = output + rows[u].start;
                    const T a = p[i], b = s[i], c = p[more], e = s[more];
                    from_float(out[i], to_float(a) * shares[u].prefix + to_float(b) * shares[u].suffix);
                    from_float(out[more], to_float(c) * shares[u].prefix + to_float(e) * shares[u].suffix);
                }
            }
        }
        return;
    }
    if (!LOADS_FIRST) fetch_columns(d);
    while (col < d) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if (rows[u].start >= 0) {
                Pack<VEC> out;
#pragma unroll
                for (int i = 0; i < VEC; ++i)
                    from_float(out.value[i],
                               to_float(p[u].value[i]) * shares[u].prefix + to_float(s[u].value[i]) * shares[u].suffix);
                store<VEC>(output + rows[u].start + col, out);
            }
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
    // The same answer in every thread: vectors need rows that start and end on one.
    const unsigned long long addresses = reinterpret_cast<unsigned long long>(output) |
                                         reinterpret_cast<unsigned long long>(prefix_output) |
                                         reinterpret_cast<unsigned long long>(suffix_output);
    const bool aligned = VEC == 1 || (d % VEC == 0 && addresses % Pack<VEC>::PIECE == 0);

    unsigned tile = blockIdx.x;
    do {
        tile_rows(output, output_lse, prefix_output, prefix_lse, suffix_output, suffix_lse, tile * TILE, n, h, d, aligned);
        tile += gridDim.x;
    } while (WALK && tile < tiles);  // otherwise the grid has a block for every tile
}
