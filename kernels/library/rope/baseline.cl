// A work-group for each token; a work-item takes one pair of elements after another, first of the query, then of the key.

#if T_IS_FLOAT16
float load(__global const T* from, size_t i) { return vload_half(i, from); }
void store(__global T* to, size_t i, float x) { vstore_half_rte(x, i, to); }
#elif T_IS_BFLOAT16
// bfloat16 is the upper half of a float; a store rounds to nearest even.
float load(__global const T* from, size_t i) { return as_float((uint)from[i] << 16); }
void store(__global T* to, size_t i, float x) {
    const uint bits = as_uint(x);
    to[i] = isnan(x) ? (ushort)0x7fc0 : (ushort)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
#else
float load(__global const T* from, size_t i) { return from[i]; }
void store(__global T* to, size_t i, float x) { to[i] = x; }
#endif

__kernel void rope(__global const long* positions, __global T* query, __global T* key, __global const float* table, int n,
                   int h, int k, int pairs) {
    const size_t token = get_group_id(0);
    __global const float* angles = table + positions[token] * 2 * pairs;
    for (int i = get_local_id(0); i < (h + k) * pairs; i += get_local_size(0)) {
        const int head = i / pairs, pair = i % pairs;
        __global T* x = head < h ? query + (token * h + head) * 2 * pairs : key + (token * k + head - h) * 2 * pairs;
        const float cosine = angles[pair], sine = angles[pairs + pair];
        const float first = load(x, pair), second = load(x, pairs + pair);
        store(x, pair, first * cosine - second * sine);
        store(x, pairs + pair, second * cosine + first * sine);
    }
}
