// One thread does a whole row; the others of the block have nothing to do.

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

#define GROUP 64

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void fused_add_rmsnorm(__global T* input, __global T* residual, __global const T* weight, float eps, int n, int d) {
    __local float partial[GROUP];
    const int me = get_local_id(0);
    __global T* in = input + get_group_id(0) * (size_t)d;
    __global T* res = residual + get_group_id(0) * (size_t)d;

    if (me > 0) return;
    float sum = 0.0f;
    for (int col = 0; col < d; ++col) {
        const float x = load(in, col) + load(res, col);
        store(res, col, x);
        sum += x * x;
    }
    partial[0] = rsqrt(sum / d + eps);
    for (int col = 0; col < d; ++col) store(in, col, load(res, col) * partial[0] * load(weight, col));
}
