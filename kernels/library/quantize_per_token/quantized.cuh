// Numbers of one byte, rounded to nearest even: int8, or float8_e4m3.

#if Q_IS_INT8
// The sum has a last place of one: its lowest byte is x, rounded. |x| is at most a hair above 127, so that nothing needs to
// be clamped.
__device__ __forceinline__ unsigned int rounded(float x) { return __float_as_uint(x + 12582912.0f) & 0xff; }
__device__ __forceinline__ unsigned int rounded(float a, float b, float c, float d) {
    const unsigned int low = __byte_perm(__float_as_uint(a + 12582912.0f), __float_as_uint(b + 12582912.0f), 0x0040);
    const unsigned int high = __byte_perm(__float_as_uint(c + 12582912.0f), __float_as_uint(d + 12582912.0f), 0x0040);
    return __byte_perm(low, high, 0x5410);
}
#else
__device__ __forceinline__ unsigned int rounded(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }
__device__ __forceinline__ unsigned int rounded(float a, float b, float c, float d) {
    const unsigned int low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
    const unsigned int high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
}
#endif
