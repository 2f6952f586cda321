// What a kernel of CUDA sees as C++: the threads of a block are fibers that meet at barriers.
#pragma once
#include <math.h>
#include <string.h>
struct Extent { unsigned int x, y, z; };
struct uint2 { unsigned int x, y; };
struct uint4 { unsigned int x, y, z, w; };
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
struct float4 { float x, y, z, w; };
inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct __half { unsigned short bits; __half() = default; __half(float x); operator float() const; };
inline float __half2float(__half x) { _Float16 y; memcpy(&y, &x, 2); return y; }
inline __half __float2half_rn(float x) { const _Float16 y = x; __half to; memcpy(&to, &y, 2); return to; }
inline __half::__half(float x) { *this = __float2half_rn(x); }
inline __half::operator float() const { return __half2float(*this); }
struct __nv_bfloat16 {
    unsigned short bits;
    operator float() const { const unsigned int y = bits << 16; float x; memcpy(&x, &y, 4); return x; }
};
template <class Piece, class V> V products(V a, V b, V c) {
    for (int i = 0; i < 32; i += 8) c += (Piece)(a >> i) * (Piece)(b >> i);
    return c;
}
inline int __dp4a(int a, int b, int c) { return products<signed char>(a, b, c); }
inline unsigned int __dp4a(unsigned int a, unsigned int b, unsigned int c) { return products<unsigned char>(a, b, c); }
template <class V> V __ldg(const V* from) { return *from; }
template <class V> V __ldcs(const V* from) { return *from; }
template <class V> void __stcs(V* to, V value) { *to = value; }
extern Extent threadIdx, blockIdx, blockDim, gridDim;
#define __global__
#define __device__
#define __shared__ static
#define __launch_bounds__(...)
#define __forceinline__ inline
namespace shim {
void run(Extent grid, Extent dims, void (*kernel)(void*), void* given);
double exchanged(double value, unsigned int mask, unsigned int lanes);
double shifted(double value, int by, unsigned int lanes);
double of_lane(double value, int lane, unsigned int lanes);
extern char dynamic[1 << 18];
template <class Kernel> void run(Extent grid, Extent dims, Kernel kernel) {
    run(grid, dims, [](void* given) { (*static_cast<Kernel*>(given))(); }, &kernel);
}
}
void __syncthreads();
template <class V> V __shfl_xor_sync(unsigned int lanes, V value, int mask) {
    return (V)shim::exchanged((double)value, (unsigned int)mask, lanes);
}
template <class V> V __shfl_down_sync(unsigned int lanes, V value, unsigned int by) {
    return (V)shim::shifted((double)value, (int)by, lanes);
}
template <class V> V __shfl_up_sync(unsigned int lanes, V value, unsigned int by) {
    return (V)shim::shifted((double)value, -(int)by, lanes);
}
template <class V> V __shfl_sync(unsigned int lanes, V value, int lane) {
    return (V)shim::of_lane((double)value, lane, lanes);
}
inline bool __any_sync(unsigned int lanes, bool value) {
    bool any = value;
    for (int lane = 0; lane < 32; ++lane) any |= __shfl_sync(lanes, value, lane);
    return any;
}
inline bool __all_sync(unsigned int lanes, bool value) { return !__any_sync(lanes, !value); }
inline void __syncwarp(unsigned int lanes = 0xffffffffu) { __shfl_xor_sync(lanes, 0, 0); }
inline unsigned long long __cvta_generic_to_shared(const void* at) { return (const char*)at - shim::dynamic; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline int __float2int_rn(float x) { return (int)lrintf(x); }
inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
inline float __uint_as_float(unsigned int x) { float y; memcpy(&y, &x, 4); return y; }
inline unsigned int __float_as_uint(float x) { unsigned int y; memcpy(&y, &x, 4); return y; }
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline unsigned int __byte_perm(unsigned int a, unsigned int b, unsigned int which) {
    const unsigned long long both = a | (unsigned long long)b << 32;
    unsigned int found = 0;
    for (int i = 0; i < 4; ++i) found |= (unsigned int)(both >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
    return found;
}
inline unsigned int max(unsigned int a, unsigned int b) { return a > b ? a : b; }
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }
template <class V> V atomicAdd(V* at, V value) { V old = *at; *at += value; return old; }
