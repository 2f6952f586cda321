// A row belongs to GROUP_X work-items, GROUP_Y rows to a work-group. Each work-item walks over its part of the row twice,
// the second time out of the cache. OpenCL's vector loads need no alignment beyond an element's, so every row takes
// vectors, and the last few elements of a row go one by one.

// The sum of a vector's elements.
float sum_of1(float x) { return x; }
float sum_of2(float2 x) { return x.lo + x.hi; }
float sum_of4(float4 x) { return sum_of2(x.lo + x.hi); }
float sum_of8(float8 x) { return sum_of4(x.lo + x.hi); }
float sum_of16(float16 x) { return sum_of8(x.lo + x.hi); }

#if SIDE_BY_SIDE
// Each work-item has one run of columns, a whole number of vectors.
#define FIRST (get_local_id(0) * run)
#define LAST min((int)get_local_id(0) * run + run, whole)
#define STEP VEC
#else
#define FIRST (get_local_id(0) * VEC)
#define LAST whole
#define STEP (GROUP_X * VEC)
#endif

__kernel __attribute__((reqd_work_group_size(GROUP_X, GROUP_Y, 1)))
void fused_add_rmsnorm(__global T* restrict input, __global T* restrict residual, __global const T* restrict weight,
                       float eps, int n, int d) {
    const int row = get_group_id(0) * GROUP_Y + get_local_id(1);
    // Work-items beyond the last row have no columns, but take part in the barriers.
    const int end = row < n ? d : 0;
    const int whole = end / VEC * VEC;
    const int run = (whole / VEC + GROUP_X - 1) / GROUP_X * VEC;
    __global T* in = input + (size_t)row * d;
    __global T* res = residual + (size_t)row * d;

    // SUMS chains of additions that do not wait for each other.
    FLOATS sums[SUMS];
    for (int s = 0; s < SUMS; ++s) sums[s] = (FLOATS)0.0f;
    int col = FIRST;
    for (; col + (SUMS - 1) * STEP < LAST; col += SUMS * STEP) {
        for (int s = 0; s < SUMS; ++s) {
            const FLOATS x = loads(in + col + s * STEP) + loads(res + col + s * STEP);
            stores(res + col + s * STEP, x);
            sums[s] += x * x;
        }
    }
    for (; col < LAST; col += STEP) {
        const FLOATS x = loads(in + col) + loads(res + col);
        stores(res + col, x);
        sums[0] += x * x;
    }
    float sum = 0.0f;
    for (int i = whole + get_local_id(0); i < end; i += GROUP_X) {
        const float x = load(in + i) + load(res + i);
        store(res + i, x);
        sum += x * x;
    }
    for (int s = 0; s < SUMS; ++s) sum += JOIN(sum_of, VEC)(sums[s]);

#if GROUP_X > 1
    __local float partial[GROUP_Y][GROUP_X];
    __local float* mine = partial[get_local_id(1)];
    mine[get_local_id(0)] = sum;
    for (int half_of = GROUP_X / 2; half_of > 0; half_of /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (get_local_id(0) < half_of) mine[get_local_id(0)] += mine[get_local_id(0) + half_of];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    sum = mine[0];
#endif

    const float scale = rsqrt(sum / d + eps);
    for (col = FIRST; col < LAST; col += STEP) stores(in + col, loads(res + col) * scale * loads(weight + col));
    for (int i = whole + get_local_id(0); i < end; i += GROUP_X) store(in + i, load(res + i) * scale * load(weight + i));
}
