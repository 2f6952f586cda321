// What lets one kernel text be OpenCL C and CUDA C++; this is the CUDA half.
#define KERNEL extern "C" __global__ void
#define GLOBAL
#define SHARED __shared__
#define CONSTANT __constant__
#define DEVICE __device__
#define BARRIER __syncthreads()
#define THREAD ((int)threadIdx.x)
#define THREAD_Y ((int)threadIdx.y)
#define THREADS ((int)blockDim.x)
#define BLOCK ((size_t)blockIdx.x)
#define BLOCK_Y ((size_t)blockIdx.y)
#define EXP expf
#define EXP2 exp2f
#define LOG logf
#define RSQRT rsqrtf
#define SQRT sqrtf
#define TANH tanhf
#define MAX fmaxf
#define MIN fminf
#define FMA fmaf
#define BITS __float_as_uint
#define FLOAT_OF __uint_as_float
#define INF __int_as_float(0x7f800000)
#define WIDE long long
#define ADDRESS(pointer) ((unsigned long long)(pointer))
#define POPCOUNT __popc
#define ATOMIC_ADD(pointer, value) atomicAdd(pointer, value)
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned char uchar;
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
__device__ float load(const T* from, size_t i) { return __half2float(from[i]); }
__device__ void store(T* to, size_t i, float x) { to[i] = __float2half_rn(x); }
__device__ float rounded(float x) { return __half2float(__float2half_rn(x)); }
#elif T_IS_BFLOAT16
__device__ float load(const T* from, size_t i) { return __bfloat162float(from[i]); }
__device__ void store(T* to, size_t i, float x) { to[i] = __float2bfloat16_rn(x); }
__device__ float rounded(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }
#elif T_IS_FLOAT32
__device__ float load(const T* from, size_t i) { return from[i]; }
__device__ void store(T* to, size_t i, float x) { to[i] = x; }
__device__ float rounded(float x) { return x; }
#endif
