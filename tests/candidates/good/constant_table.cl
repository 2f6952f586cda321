// A table in constant memory, and constants that the compiler folds.

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

__constant float ones[4] = {1.0f, 1.0f, 1.0f, 1.0f};

__kernel void silu_and_mul(__global const T* input, __global T* out, int n, int d) {
    const int col = get_global_id(0);
    const size_t row = get_group_id(1);

    if (col < d) {
        const float x = load(input, row * 2 * d + col);
        store(out, row * d + col, x / (1.0f + exp(-x)) * load(input, row * 2 * d + d + col) * ones[col % 4]);

    }
}
