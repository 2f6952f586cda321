// A work-group works on a tile of GROUP_Y rows by GROUP_X * VEC * ITEMS columns; a work-item takes ITEMS vectors of VEC
// elements, GROUP_X vectors apart or side by side. OpenCL's vector loads need no alignment beyond an element's, so every
// row takes vectors, and its last few elements go one by one.

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
