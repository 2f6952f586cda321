// Elements of T as floats. A 16-bit float is its bits here: to read CUDA's headers for the two types takes longer than to
// compile a small kernel's loads and stores, and of all they define these conversions are needed. The assembly is written
// as it is there: its text counts in what the compiler thinks a loop costs, and so in the unrolling.

#if T_IS_FLOAT16 || T_IS_BFLOAT16
struct Bits { unsigned short bits; };
#undef T  // where this stands, no header is included for T
#define T Bits
#endif

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ void from_float(float& to, float x) { to = x; }
#if T_IS_FLOAT16
__device__ __forceinline__ float to_float(Bits x) {
    float y;
    asm("{  cvt.f32.f16 %0, %1;}\n" : "=f"(y) : "h"(x.bits));
    return y;
}
__device__ __forceinline__ void from_float(Bits& to, float x) {
    asm("{  cvt.rn.f16.f32 %0, %1;}\n" : "=h"(to.bits) : "f"(x));
}
#elif T_IS_BFLOAT16
__device__ __forceinline__ float to_float(Bits x) {
    float y;
#if __CUDA_ARCH__ >= 900
    asm("{ cvt.f32.bf16 %0, %1;}\n" : "=f"(y) : "h"(x.bits));
#else
    asm("{ mov.b32 %0, {0,%1};}\n" : "=f"(y) : "h"(x.bits));
#endif
    return y;
}
__device__ __forceinline__ void from_float(Bits& to, float x) {
#if __CUDA_ARCH__ >= 800
    asm("{  cvt.rn.bf16.f32 %0, %1;}\n" : "=h"(to.bits) : "f"(x));
#else
    const unsigned int bits = __float_as_uint(x);  // to nearest even
    to.bits = x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#endif
}
#endif
