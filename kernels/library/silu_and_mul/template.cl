// A work-group works on a tile of GROUP_Y rows by GROUP_X * VEC * ITEMS columns; a work-item takes ITEMS vectors of VEC
// elements, GROUP_X vectors apart or side by side. OpenCL's vector loads need no alignment beyond an element's, so every
// row takes vectors, and its last few elements go one by one.

#if FAST_EXP
#define SILU(x) ((x) / (1.0f + native_exp(-(x))))
#else
#define SILU(x) ((x) / (1.0f + exp(-(x))))
#endif

__kernel __attribute__((reqd_work_group_size(GROUP_X, GROUP_Y, 1)))
void silu_and_mul(__global const T* restrict input, __global T* restrict out, int n, int d) {
    const int row = get_group_id(1) * GROUP_Y + get_local_id(1);
    if (row >= n) return;
    __global const T* gate = input + (size_t)row * 2 * d;
    __global const T* up = gate + d;
    __global T* to = out + (size_t)row * d;
    const int start = get_group_id(0) * (GROUP_X * VEC * ITEMS);
#if SIDE_BY_SIDE
    const int first = start + get_local_id(0) * (VEC * ITEMS), step = VEC;
#else
    const int first = start + get_local_id(0) * VEC, step = GROUP_X * VEC;
#endif
    for (int item = 0; item < ITEMS; ++item) {
        const int col = first + item * step;
        if (col + VEC <= d) {
            const FLOATS x = loads(gate + col);
            stores(to + col, SILU(x) * loads(up + col));
        } else {
            for (int i = col; i < d; ++i) {
                const float x = load(gate + i);
                store(to + i, SILU(x) * load(up + i));
            }
        }
    }
}
