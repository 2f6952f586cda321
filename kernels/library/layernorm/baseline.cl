// A work-group for each row, which is read three times: for its mean, for its variance, and for the results.

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

#define GROUP 64

__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void layernorm(__global const T* input, __global const T* weight, __global const T* bias, __global T* out, float eps,
               int n, int d) {
    __local float partial[GROUP];
    const int me = get_local_id(0);
    __global const T* from = input + get_group_id(0) * (size_t)d;
    __global T* to = out + get_group_id(0) * (size_t)d;

    float sum = 0.0f;
    for (int col = me; col < d; col += GROUP) sum += load(from, col);
    partial[me] = sum;
    for (int half_of = GROUP / 2; half_of > 0; half_of /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < half_of) partial[me] += partial[me + half_of];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const float mean = partial[0] / d;
    barrier(CLK_LOCAL_MEM_FENCE);

    float squares = 0.0f;
    for (int col = me; col < d; col += GROUP) {
        const float away = load(from, col) - mean;
        squares += away * away;
    }
    partial[me] = squares;
    for (int half_of = GROUP / 2; half_of > 0; half_of /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < half_of) partial[me] += partial[me + half_of];
    }
    barrier(CLK_LOCAL_MEM_FENCE);

    const float scale = rsqrt(partial[0] / d + eps);
    for (int col = me; col < d; col += GROUP)
        store(to, col, (load(from, col) - mean) * scale * load(weight, col) + load(bias, col));
}
