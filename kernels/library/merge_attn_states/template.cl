// GROUP_X work-items lie along a row of one token and head, GROUP_Y rows in a work-group, which takes ROWS such sets one
// after the other. OpenCL's vector loads need no alignment beyond an element's, so every row takes vectors, and its last
// few elements go one by one.

__kernel __attribute__((reqd_work_group_size(GROUP_X, GROUP_Y, 1)))
void merge_attn_states(__global T* restrict output, __global float* restrict output_lse,
                       __global const T* restrict prefix_output, __global const float* restrict prefix_lse,
                       __global const T* restrict suffix_output, __global const float* restrict suffix_lse,
                       int n, int h, int d) {
    for (int i = 0; i < ROWS; ++i) {
        const size_t row = (get_group_id(0) * (size_t)ROWS + i) * GROUP_Y + get_local_id(1);
        if (row >= (size_t)n * h) return;
#if TOKENS_FIRST
        const size_t head = row / n, token = row % n;
#else
        const size_t token = row / h, head = row % h;
#endif
        // An infinite log-sum-exp, of either sign, says that the part is empty.
        float p = prefix_lse[head * n + token], s = suffix_lse[head * n + token];
        if (p == INFINITY) p = -INFINITY;
        if (s == INFINITY) s = -INFINITY;
        const float largest = fmax(p, s);
        const bool empty = largest == -INFINITY;
        const float p_weight = empty ? 0.0f : exp(p - largest), s_weight = empty ? 0.0f : exp(s - largest);
        const float sum = empty ? 1.0f : p_weight + s_weight;
        const float p_share = p_weight / sum, s_share = s_weight / sum;
        if (get_local_id(0) == 0) output_lse[head * n + token] = log(sum) + largest;

        const size_t start = (token * h + head) * d;
        __global const T* prefix = prefix_output + start;
        __global const T* suffix = suffix_output + start;
        __global T* out = output + start;
        const int whole = d / VEC * VEC;
        for (int col = get_local_id(0) * VEC; col < whole; col += GROUP_X * VEC)
            stores(out + col, loads(prefix + col) * p_share + loads(suffix + col) * s_share);
        for (int col = whole + get_local_id(0); col < d; col += GROUP_X)
            store(out + col, load(prefix + col) * p_share + load(suffix + col) * s_share);
    }
}
