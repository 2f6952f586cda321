// Vectors of eight where they fit, single elements for the rest of a row.

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

__kernel void silu_and_mul(__global const T* input, __global T* out, int n, int d) {
    const size_t row = get_group_id(0);
    __global const T* gate = input + row * 2 * d;
    const int whole = d / 8 * 8;
#if T_IS_FLOAT16
    for (int col = 8 * get_local_id(0); col < whole; col += 8 * get_local_size(0)) {
        const float8 x = vload_half8(0, gate + col);
        vstore_half8_rte(x / (1.0f + exp(-x)) * vload_half8(0, gate + d + col), 0, out + row * d + col);
    }
    for (int col = whole + get_local_id(0); col < d; col += get_local_size(0)) {
#else
    for (int col = get_local_id(0); col < d; col += get_local_size(0)) {
#endif
        const float x = load(gate, col);
        store(out, row * d + col, x / (1.0f + exp(-x)) * load(gate, d + col));
    }
}
