// A work-item takes ITEMS neighbouring elements.
__kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void scale_add(__global const float* x, __global const float* y, __global float* out, float a, int n) {
    const int first = get_global_id(0) * ITEMS;
#if UNROLL
#pragma unroll
#endif
    for (int item = 0; item < ITEMS; ++item) {
        const int i = first + item;
        if (i < n) out[i] = a * x[i] + y[i];
    }
}
