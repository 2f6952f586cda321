// Vectors of VEC elements of T as floats, for any T: 16-bit floats are storage only (half is read with vload_half,
// bfloat16 is the upper half of a float), and one element has the same names as many.

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
