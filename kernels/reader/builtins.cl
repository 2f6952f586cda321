// The part of OpenCL C that clang takes from its header opencl-c-base.h: vector types, flags, loads and stores of vectors.
#undef cl_amd_media_ops
#undef cl_amd_media_ops2
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef __INTPTR_TYPE__ intptr_t;
typedef __UINTPTR_TYPE__ uintptr_t;
typedef uint cl_mem_fence_flags;
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define CLK_LOCAL_MEM_FENCE 1
#define CLK_GLOBAL_MEM_FENCE 2
#define CLK_IMAGE_MEM_FENCE 4
#define CLK_NORMALIZED_COORDS_FALSE 0
#define CLK_NORMALIZED_COORDS_TRUE 1
#define CLK_ADDRESS_NONE 0
#define CLK_ADDRESS_CLAMP 4
#define CLK_ADDRESS_CLAMP_TO_EDGE 2
#define CLK_FILTER_NEAREST 0x10
#define CLK_FILTER_LINEAR 0x20
#define NULL ((void*)0)
#define get_global_offset(axis) ((size_t)0)
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF __builtin_inff()
#define MAXFLOAT 3.402823466e+38F
#define FLT_MAX 3.402823466e+38F
#define FLT_MIN 1.175494351e-38F
#define FLT_EPSILON 1.192092896e-07F
#define DBL_MAX 1.7976931348623158e+308
#define DBL_EPSILON 2.2204460492503131e-16
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295U
#define LONG_MAX 9223372036854775807L
#define ULONG_MAX 18446744073709551615UL
#define CHAR_MAX 127
#define CHAR_BIT 8
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define M_PI 3.14159265358979323846
#define M_PI_F 3.14159265358979323846f
#define M_PI_2 1.57079632679489661923
#define M_PI_2_F 1.57079632679489661923f
#define M_1_PI_F 0.31830988618379067154f
#define M_E_F 2.7182818284590452354f
#define M_LOG2E_F 1.4426950408889634074f
#define M_LN2_F 0.69314718055994530942f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.70710678118654752440f
#define TYPES(T) typedef T T##2 __attribute__((ext_vector_type(2))); typedef T T##3 __attribute__((ext_vector_type(3))); \
    typedef T T##4 __attribute__((ext_vector_type(4))); typedef T T##8 __attribute__((ext_vector_type(8))); \
    typedef T T##16 __attribute__((ext_vector_type(16)));
TYPES(char) TYPES(uchar) TYPES(short) TYPES(ushort) TYPES(int) TYPES(uint) TYPES(long) TYPES(ulong) TYPES(float) TYPES(double) TYPES(half)
#define OVER __attribute__((overloadable))
#define MOVE(T, N, S) OVER T##N vload##N(size_t, const S T*); OVER void vstore##N(T##N, size_t, S T*);
#define MOVES(T, N) MOVE(T, N, __global) MOVE(T, N, __local) MOVE(T, N, __private) OVER T##N vload##N(size_t, const __constant T*);
#define ALL_MOVES(T) MOVES(T, 2) MOVES(T, 3) MOVES(T, 4) MOVES(T, 8) MOVES(T, 16)
ALL_MOVES(char) ALL_MOVES(uchar) ALL_MOVES(short) ALL_MOVES(ushort) ALL_MOVES(int) ALL_MOVES(uint) ALL_MOVES(long) ALL_MOVES(ulong) ALL_MOVES(float) ALL_MOVES(double)
OVER float vload_half(size_t, const __global half*); OVER void vstore_half(float, size_t, __global half*);
OVER float vload_half(size_t, const __local half*); OVER void vstore_half(float, size_t, __local half*);
OVER float4 vload_half4(size_t, const __global half*); OVER void vstore_half4(float4, size_t, __global half*);
int printf(__constant const char*, ...);
#define as(x, T) __builtin_astype((x), T)
#define as_char(x) as(x, char)
#define as_uchar(x) as(x, uchar)
#define as_short(x) as(x, short)
#define as_ushort(x) as(x, ushort)
#define as_int(x) as(x, int)
#define as_uint(x) as(x, uint)
#define as_long(x) as(x, long)
#define as_ulong(x) as(x, ulong)
#define as_float(x) as(x, float)
#define as_double(x) as(x, double)
#define as_half(x) as(x, half)
#define as_char2(x) as(x, char2)
#define as_char3(x) as(x, char3)
#define as_char4(x) as(x, char4)
#define as_char8(x) as(x, char8)
#define as_char16(x) as(x, char16)
#define as_uchar2(x) as(x, uchar2)
#define as_uchar3(x) as(x, uchar3)
#define as_uchar4(x) as(x, uchar4)
#define as_uchar8(x) as(x, uchar8)
#define as_uchar16(x) as(x, uchar16)
#define as_short2(x) as(x, short2)
#define as_short3(x) as(x, short3)
#define as_short4(x) as(x, short4)
#define as_short8(x) as(x, short8)
#define as_short16(x) as(x, short16)
#define as_ushort2(x) as(x, ushort2)
#define as_ushort3(x) as(x, ushort3)
#define as_ushort4(x) as(x, ushort4)
#define as_ushort8(x) as(x, ushort8)
#define as_ushort16(x) as(x, ushort16)
#define as_int2(x) as(x, int2)
#define as_int3(x) as(x, int3)
#define as_int4(x) as(x, int4)
#define as_int8(x) as(x, int8)
#define as_int16(x) as(x, int16)
#define as_uint2(x) as(x, uint2)
#define as_uint3(x) as(x, uint3)
#define as_uint4(x) as(x, uint4)
#define as_uint8(x) as(x, uint8)
#define as_uint16(x) as(x, uint16)
#define as_long2(x) as(x, long2)
#define as_long3(x) as(x, long3)
#define as_long4(x) as(x, long4)
#define as_long8(x) as(x, long8)
#define as_long16(x) as(x, long16)
#define as_ulong2(x) as(x, ulong2)
#define as_ulong3(x) as(x, ulong3)
#define as_ulong4(x) as(x, ulong4)
#define as_ulong8(x) as(x, ulong8)
#define as_ulong16(x) as(x, ulong16)
#define as_float2(x) as(x, float2)
#define as_float3(x) as(x, float3)
#define as_float4(x) as(x, float4)
#define as_float8(x) as(x, float8)
#define as_float16(x) as(x, float16)
#define as_double2(x) as(x, double2)
#define as_double3(x) as(x, double3)
#define as_double4(x) as(x, double4)
#define as_double8(x) as(x, double8)
#define as_double16(x) as(x, double16)
#define as_half2(x) as(x, half2)
#define as_half3(x) as(x, half3)
#define as_half4(x) as(x, half4)
#define as_half8(x) as(x, half8)
#define as_half16(x) as(x, half16)
