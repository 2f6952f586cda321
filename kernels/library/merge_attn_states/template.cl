// GROUP_X work-items lie along a row of one token and head, GROUP_Y rows in a work-group, which takes ROWS such sets one
// after the other. OpenCL's vector loads need no alignment beyond an element's, so every row takes vectors, and its last
// few elements go one by one.

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#if VEC == 1
#define FLOATS float
#define UINTS uint
#define VLOAD(i, from) ((from)[i])
#define VSTORE(x, i, to) ((to)[i] = (x))
#define VLOAD_HALF vload_half
#define VSTORE_HALF vstore_half_rte
#define USHORTS ushort
#else
#define FLOATS JOIN(float, VEC)
#define UINTS JOIN(uint, VEC)
#define USHORTS JOIN(ushort, VEC)
#define VLOAD JOIN(vload, VEC)
#define VSTORE JOIN(vstore, VEC)
#define VLOAD_HALF JOIN(vload_half, VEC)
#define VSTORE_HALF JOIN(JOIN(vstore_half, VEC), _rte)
#endif

#if T_IS_FLOAT16
float load(__global const T* from) { return vload_half(0, from); }
void store(__global T* to, float x) { vstore_half_rte(x, 0, to); }
FLOATS loads(__global const T* from) { return VLOAD_HALF(0, from); }
void stores(__global T* to, FLOATS x) { VSTORE_HALF(x, 0, to); }
#elif T_IS_BFLOAT16
// bfloat16 is the upper half of a float; a store rounds to nearest even.
float load(__global const T* from) { return as_float((uint)*from << 16); }
void store(__global T* to, float x) {
    const uint bits = as_uint(x);
    *to = isnan(x) ? (ushort)0x7fc0 : (ushort)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
FLOATS loads(__global const T* from) {
    return JOIN(as_, FLOATS)(JOIN(convert_, UINTS)(VLOAD(0, from)) << 16);
}
void stores(__global T* to, FLOATS x) {
    const UINTS bits = JOIN(as_, UINTS)(x);
    const UINTS rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    // A NaN is the one value that differs from itself; rounding could make it an infinity.
    VSTORE(JOIN(convert_, USHORTS)(x != x ? (UINTS)0x7fc0 : rounded), 0, to);
}
#else
float load(__global const T* from) { return *from; }
void store(__global T* to, float x) { *to = x; }
FLOATS loads(__global const T* from) { return VLOAD(0, from); }
void stores(__global T* to, FLOATS x) { VSTORE(x, 0, to); }
#endif

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
