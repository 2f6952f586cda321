// Elements of T as floats and back, rounded to nearest even.

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ void from_float(float& to, float x) { to = x; }
#if T_IS_FLOAT16
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ void from_float(__half& to, float x) { to = __float2half_rn(x); }
#elif T_IS_BFLOAT16
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void from_float(__nv_bfloat16& to, float x) { to = __float2bfloat16_rn(x); }
#endif
