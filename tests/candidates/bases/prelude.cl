// What lets one kernel text be OpenCL C and CUDA C++; this is the OpenCL half.
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#define KERNEL __kernel void
#define GLOBAL __global
#define SHARED __local
#define CONSTANT __constant
#define DEVICE
#define BARRIER barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define THREAD ((int)get_local_id(0))
#define THREAD_Y ((int)get_local_id(1))
#define THREADS ((int)get_local_size(0))
#define BLOCK ((size_t)get_group_id(0))
#define BLOCK_Y ((size_t)get_group_id(1))
#define EXP exp
#define EXP2 exp2
#define LOG log
#define RSQRT rsqrt
#define SQRT sqrt
#define TANH tanh
#define MAX fmax
#define MIN fmin
#define FMA fma
#define BITS as_uint
#define FLOAT_OF as_float
#define INF INFINITY
#define WIDE long
#define ADDRESS(pointer) ((ulong)(pointer))
#define POPCOUNT popcount
#define ATOMIC_ADD(pointer, value) atomic_add(pointer, value)
#ifndef T_IS_FLOAT16
#define T_IS_FLOAT16 0
#endif
#ifndef T_IS_BFLOAT16
#define T_IS_BFLOAT16 0
#endif
#ifndef T_IS_FLOAT32
#define T_IS_FLOAT32 0
#endif
#if T_IS_FLOAT16
float load(__global const T* from, size_t i) { return vload_half(i, from); }
void store(__global T* to, size_t i, float x) { vstore_half_rte(x, i, to); }
float rounded(float x) { ushort at; vstore_half_rte(x, 0, (half*)&at); return vload_half(0, (const half*)&at); }
#elif T_IS_BFLOAT16
float load(__global const T* from, size_t i) { return as_float((uint)from[i] << 16); }
uint bf16_bits(float x) { const uint b = as_uint(x); return isnan(x) ? 0x7fc0u : (b + 0x7fffu + ((b >> 16) & 1u)) >> 16; }
void store(__global T* to, size_t i, float x) { to[i] = (ushort)bf16_bits(x); }
float rounded(float x) { return as_float(bf16_bits(x) << 16); }
#elif T_IS_FLOAT32
float load(__global const T* from, size_t i) { return from[i]; }
void store(__global T* to, size_t i, float x) { to[i] = x; }
float rounded(float x) { return x; }
#endif
