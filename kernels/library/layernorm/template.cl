// A row belongs to GROUP_X work-items, GROUP_Y rows to a work-group. Each work-item walks over its part of the row three
// times, the later ones out of the cache. OpenCL's vector loads need no alignment beyond an element's, so every row takes
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

#if GROUP_X > 1
// The sum of one value of each work-item of a row, for all of them.
#define TOTAL(mine, x)                                                                                      \
    mine[get_local_id(0)] = x;                                                                              \
    for (int half_of = GROUP_X / 2; half_of > 0; half_of /= 2) {                                            \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                       \
        if (get_local_id(0) < half_of) mine[get_local_id(0)] += mine[get_local_id(0) + half_of];            \
    }                                                                                                       \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                           \
    x = mine[0];
#else
#define TOTAL(mine, x)
#endif

// x becomes the sum of TERM(loads, vector) over this work-item's columns, of TERM(load, element) over its part of the last
// few, by SUMS chains of additions that do not wait for each other.
#define SUM(x, TERM)                                                                                        \
    {                                                                                                       \
        FLOATS sums[SUMS];                                                                                  \
        for (int s = 0; s < SUMS; ++s) sums[s] = (FLOATS)0.0f;                                              \
        int col = FIRST;                                                                                    \
        for (; col + (SUMS - 1) * STEP < LAST; col += SUMS * STEP)                                          \
            for (int s = 0; s < SUMS; ++s) sums[s] += TERM(loads(from + col + s * STEP));                   \
        for (; col < LAST; col += STEP) sums[0] += TERM(loads(from + col));                                 \
        for (int i = whole + get_local_id(0); i < end; i += GROUP_X) x += TERM(load(from + i));             \
        for (int s = 0; s < SUMS; ++s) x += JOIN(sum_of, VEC)(sums[s]);                                     \
    }
#define ITSELF(x) (x)
#define SQUARE_AWAY(x) (((x) - mean) * ((x) - mean))

__kernel __attribute__((reqd_work_group_size(GROUP_X, GROUP_Y, 1)))
void layernorm(__global const T* restrict input, __global const T* restrict weight, __global const T* restrict bias,
               __global T* restrict out, float eps, int n, int d) {
#if GROUP_X > 1
    __local float partial[2][GROUP_Y][GROUP_X];
#endif
    const int row = get_group_id(0) * GROUP_Y + get_local_id(1);
    // Work-items beyond the last row have no columns, but take part in the barriers.
    const int end = row < n ? d : 0;
    const int whole = end / VEC * VEC;
    const int run = (whole / VEC + GROUP_X - 1) / GROUP_X * VEC;
    __global const T* from = input + (size_t)row * d;
    __global T* to = out + (size_t)row * d;

    float sum = 0.0f;
    SUM(sum, ITSELF)
    TOTAL(partial[0][get_local_id(1)], sum)
    const float mean = sum / d;

    float squares = 0.0f;
    SUM(squares, SQUARE_AWAY)
    TOTAL(partial[1][get_local_id(1)], squares)
    const float scale = rsqrt(squares / d + eps);

    for (int col = FIRST; col < LAST; col += STEP)
        stores(to + col, (loads(from + col) - mean) * scale * loads(weight + col) + loads(bias + col));
    for (int i = whole + get_local_id(0); i < end; i += GROUP_X)
        store(to + i, (load(from + i) - mean) * scale * load(weight + i) + load(bias + i));
}
