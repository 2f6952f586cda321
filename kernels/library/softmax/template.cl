// A row belongs to GROUP_X work-items, GROUP_Y rows to a work-group. Each work-item walks over its part of the row in
// vectors, whose elements have maxima and sums of their own until the end. OpenCL's vector loads need no alignment beyond
// an element's, so every row takes vectors, and the last few elements of a row go one by one.

// The sum of a vector's elements, and the largest of them.
float sum_of1(float x) { return x; }
float sum_of2(float2 x) { return x.lo + x.hi; }
float sum_of4(float4 x) { return sum_of2(x.lo + x.hi); }
float sum_of8(float8 x) { return sum_of4(x.lo + x.hi); }
float sum_of16(float16 x) { return sum_of8(x.lo + x.hi); }
float max_of1(float x) { return x; }
float max_of2(float2 x) { return fmax(x.lo, x.hi); }
float max_of4(float4 x) { return max_of2(fmax(x.lo, x.hi)); }
float max_of8(float8 x) { return max_of4(fmax(x.lo, x.hi)); }
float max_of16(float16 x) { return max_of8(fmax(x.lo, x.hi)); }

#if FAST_EXP
#define EXP native_exp
#else
#define EXP exp
#endif

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
// Folds one value of each work-item of a row, for all of them.
#define FOLD(mine, x, combine)                                                              \
    mine[get_local_id(0)] = x;                                                              \
    for (int half_of = GROUP_X / 2; half_of > 0; half_of /= 2) {                            \
        barrier(CLK_LOCAL_MEM_FENCE);                                                       \
        if (get_local_id(0) < half_of)                                                      \
            mine[get_local_id(0)] = combine(mine[get_local_id(0)], mine[get_local_id(0) + half_of]); \
    }                                                                                       \
    barrier(CLK_LOCAL_MEM_FENCE);                                                           \
    x = mine[0];
#else
#define FOLD(mine, x, combine)
#endif
#define ADD(a, b) ((a) + (b))

__kernel __attribute__((reqd_work_group_size(GROUP_X, GROUP_Y, 1)))
void softmax(__global const T* restrict input, __global T* restrict out, int n, int d) {
#if GROUP_X > 1
    __local float maxima[GROUP_Y][GROUP_X], sums[GROUP_Y][GROUP_X];
#endif
    const int row = get_group_id(0) * GROUP_Y + get_local_id(1);
    // Work-items beyond the last row have no columns, but take part in the barriers.
    const int end = row < n ? d : 0;
    const int whole = end / VEC * VEC;
    const int run = (whole / VEC + GROUP_X - 1) / GROUP_X * VEC;
    __global const T* from = input + (size_t)row * d;
    __global T* to = out + (size_t)row * d;

    // Finite, as the difference of two infinities would be no number.
    FLOATS maximum = (FLOATS)-FLT_MAX, total = (FLOATS)0.0f;
    for (int col = FIRST; col < LAST; col += STEP) {
        const FLOATS x = loads(from + col);
#if ONLINE
        const FLOATS larger = fmax(maximum, x);
        total = total * EXP(maximum - larger) + EXP(x - larger);
        maximum = larger;
#else
        maximum = fmax(maximum, x);
#endif
    }
    float largest = JOIN(max_of, VEC)(maximum);
    for (int i = whole + get_local_id(0); i < end; i += GROUP_X) largest = fmax(largest, load(from + i));
    FOLD(maxima[get_local_id(1)], largest, fmax)

#if ONLINE
    total *= EXP(maximum - largest);
#else
    for (int col = FIRST; col < LAST; col += STEP) total += EXP(loads(from + col) - largest);
#endif
    float sum = JOIN(sum_of, VEC)(total);
    for (int i = whole + get_local_id(0); i < end; i += GROUP_X) sum += EXP(load(from + i) - largest);
    FOLD(sums[get_local_id(1)], sum, ADD)

    const float scale = 1.0f / sum;
    for (int col = FIRST; col < LAST; col += STEP) stores(to + col, EXP(loads(from + col) - largest) * scale);
    for (int i = whole + get_local_id(0); i < end; i += GROUP_X) store(to + i, EXP(load(from + i) - largest) * scale);
}
