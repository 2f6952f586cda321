// Maximum and sum in one pass, rescaled whenever the maximum grows.

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
void softmax(__global const T* input, __global T* out, int n, int d) {
    __local float partial[GROUP];
    const int me = get_local_id(0);
    __global const T* from = input + get_group_id(0) * (size_t)d;
    __global T* to = out + get_group_id(0) * (size_t)d;

    __local float maxima[GROUP];
    float sum = 0.0f, largest = -FLT_MAX;
    for (int col = me; col < d; col += GROUP) {
        const float x = load(from, col), larger = fmax(largest, x);
        sum = sum * exp(largest - larger) + exp(x - larger);
        largest = larger;
    }
    maxima[me] = largest;
    barrier(CLK_LOCAL_MEM_FENCE);
    float top = maxima[0];
    for (int other = 1; other < GROUP; ++other) top = fmax(top, maxima[other]);
    partial[me] = sum * exp(largest - top);
    for (int half_of = GROUP / 2; half_of > 0; half_of /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (me < half_of) partial[me] += partial[me + half_of];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    sum = partial[0];
    for (int col = me; col < d; col += GROUP) store(to, col, exp(load(from, col) - top) / sum);
}
