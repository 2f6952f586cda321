// The weights are sigmoids of the difference of the log-sum-exps.

#if T_IS_FLOAT16
float load(__global const T* from, size_t i) { return vload_half(i, from); }
void store(__global T* to, size_t i, float x) { vstore_half_rte(x, i, to); }
#elif T_IS_BFLOAT16
float load(__global const T* from, size_t i) { return as_float((uint)from[i] << 16); }
void store(__global T* to, size_t i, float x) {
    const uint bits = as_uint(x);
    to[i] = isnan(x) ? (ushort)0x7fc0 : (ushort)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
#else
float load(__global const T* from, size_t i) { return from[i]; }
void store(__global T* to, size_t i, float x) { to[i] = x; }
#endif

__kernel void merge_attn_states(__global T* output, __global float* output_lse, __global const T* prefix_output,
                                __global const float* prefix_lse, __global const T* suffix_output,
                                __global const float* suffix_lse, int n, int h, int d) {
    const int col = get_global_id(0);
    const size_t head = get_group_id(1), token = get_group_id(2);
    if (col >= d) return;
    float p = prefix_lse[head * n + token], s = suffix_lse[head * n + token];
    if (p == INFINITY) p = -INFINITY;
    if (s == INFINITY) s = -INFINITY;
    const float largest = fmax(p, s);
    const bool empty = largest == -INFINITY;
    const float p_weight = empty ? 0.0f : 1.0f / (1.0f + exp(s - p));
    const float s_weight = empty ? 0.0f : 1.0f / (1.0f + exp(p - s));
    const float sum = 1.0f;
    const size_t i = (token * h + head) * d + col;
    store(output, i, load(prefix_output, i) * (p_weight / sum) + load(suffix_output, i) * (s_weight / sum));
    if (col == 0) output_lse[head * n + token] = largest + (empty ? 0.0f : log1p(exp(-fabs(p - s))));
}
