// The squares are summed in half precision, where they overflow.

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

    ushort kept[1];
    float sum = 0.0f;
    for (int col = me; col < d; col += GROUP) {
        const float x = load(in, col) + load(res, col);
        store(res, col, x);
        vstore_half_rte(sum + x * x, 0, (half*)kept);
        sum = vload_half(0, (const half*)kept);
    }
    partial[me] = sum;
    for (int half_of = GROUP / 2; half_of > 0; half_of /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < half_of) partial[me] += partial[me + half_of];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const float scale = rsqrt(partial[0] / d + eps);
    for (int col = me; col < d; col += GROUP) store(in, col, load(res, col) * scale * load(weight, col));
}
