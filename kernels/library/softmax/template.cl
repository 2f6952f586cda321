// A row belongs to GROUP_X work-items, GROUP_Y rows to a work-group. Each work-item walks over its part of the row in
// vectors, whose elements have maxima and sums of their own until the end. OpenCL's vector loads need no alignment beyond
// an element's, so every row takes vectors, and the last few elements of a row go one by one.

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#if VEC == 1
#define FLOATS float
#define UINTS uint
#define VLOAD(i, from) ((from)[i])
#define VSTORE(x, i, to) ((to)[i] = (x))
#define VLOAD_HALF vload_half
#define VSTORE_HALF vstore_half_rte
#define USHORTS ushort
#else
#define FLOATS JOIN(float, VEC)
#define UINTS JOIN(uint, VEC)
#define USHORTS JOIN(ushort, VEC)
#define VLOAD JOIN(vload, VEC)
#define VSTORE JOIN(vstore, VEC)
#define VLOAD_HALF JOIN(vload_half, VEC)
#define VSTORE_HALF JOIN(JOIN(vstore_half, VEC), _rte)
#endif

#if T_IS_FLOAT16
float load(__global const T* from) { return vload_half(0, from); }
void store(__global T* to, float x) { vstore_half_rte(x, 0, to); }
FLOATS loads(__global const T* from) { return VLOAD_HALF(0, from); }
void stores(__global T* to, FLOATS x) { VSTORE_HALF(x, 0, to); }
#elif T_IS_BFLOAT16
// bfloat16 is the upper half of a float; a store rounds to nearest even.
float load(__global const T* from) { return as_float((uint)*from << 16); }
void store(__global T* to, float x) {
    const uint bits = as_uint(x);
    *to = isnan(x) ? (ushort)0x7fc0 : (ushort)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
FLOATS loads(__global const T* from) {
    return JOIN(as_, FLOATS)(JOIN(convert_, UINTS)(VLOAD(0, from)) << 16);
}
void stores(__global T* to, FLOATS x) {
    const UINTS bits = JOIN(as_, UINTS)(x);
    const UINTS rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    // A NaN is the one value that differs from itself; rounding could make it an infinity.
    VSTORE(JOIN(convert_, USHORTS)(x != x ? (UINTS)0x7fc0 : rounded), 0, to);
}
#else
float load(__global const T* from) { return *from; }
void store(__global T* to, float x) { *to = x; }
FLOATS loads(__global const T* from) { return VLOAD(0, from); }
void stores(__global T* to, FLOATS x) { VSTORE(x, 0, to); }
#endif

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
