// Dynamic shared memory, sized by a parameter of the template.

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

__kernel void silu_and_mul(__global const T* input, __global T* out, int n, int d, __local float* scratch) {
    const size_t row = get_group_id(0);
    for (int start = 0; start < d; start += BLOCK) {
        const int col = start + get_local_id(0);
        scratch[get_local_id(0)] = col < d ? load(input, row * 2 * d + col) : 0.0f;
        barrier(CLK_LOCAL_MEM_FENCE);
        const float x = scratch[get_local_id(0)];
        if (col < d) store(out, row * d + col, x / (1.0f + exp(-x)) * load(input, row * 2 * d + d + col));
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}
