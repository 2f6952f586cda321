// What nvcc declares without a header, and the headers of the device that sources include, as far as a reader needs them:
// types, and the names of functions. A line `// <HEADER>` says which header declares what follows, for a source that uses it.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __host__ __attribute__((host))
#define __constant__ __attribute__((constant))
#define __managed__ __attribute__((device))
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __cluster_dims__(...)
#define __block_size__(...)
#define __maxnreg__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __CUDACC__ 1
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define TUNESMITH_BOTH __attribute__((host)) __attribute__((device))
#define CUDART_CB
typedef unsigned long size_t;
typedef long ptrdiff_t;
#define VECTOR(T, N)                                                                            \
    struct N##1 { T x; }; struct __align__(2 * sizeof(T)) N##2 { T x, y; }; struct N##3 { T x, y, z; };                  \
    struct __align__(sizeof(T) < 8 ? 4 * sizeof(T) : 16) N##4 { T x, y, z, w; };                                         \
    TUNESMITH_BOTH N##1 make_##N##1(T); TUNESMITH_BOTH N##2 make_##N##2(T, T);                  \
    TUNESMITH_BOTH N##3 make_##N##3(T, T, T); TUNESMITH_BOTH N##4 make_##N##4(T, T, T, T);
VECTOR(signed char, char) VECTOR(unsigned char, uchar) VECTOR(short, short) VECTOR(unsigned short, ushort)
VECTOR(int, int) VECTOR(unsigned int, uint) VECTOR(long, long) VECTOR(unsigned long, ulong)
VECTOR(long long, longlong) VECTOR(unsigned long long, ulonglong) VECTOR(float, float) VECTOR(double, double)
struct dim3 { unsigned x, y, z; TUNESMITH_BOTH constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {} };
extern const __device__ uint3 threadIdx, blockIdx;
extern const __device__ dim3 blockDim, gridDim;
extern const __device__ int warpSize;
typedef int cudaError_t;
typedef int cudaError;
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
typedef unsigned long long cudaTextureObject_t;
typedef unsigned long long cudaSurfaceObject_t;
enum { cudaSuccess, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
extern "C" cudaError_t __cudaPushCallConfiguration(dim3, dim3, size_t = 0, cudaStream_t = 0);
extern "C" cudaError_t cudaConfigureCall(dim3, dim3, size_t = 0, cudaStream_t = 0);
struct tunesmith_any {
    template <class T> TUNESMITH_BOTH operator T() const;
    template <class... A> TUNESMITH_BOTH tunesmith_any(A&&...);
    template <class... A> TUNESMITH_BOTH tunesmith_any operator()(A&&...) const;
    template <class A> TUNESMITH_BOTH tunesmith_any operator[](A&&) const;
    template <class A> TUNESMITH_BOTH tunesmith_any operator<<(A&&) const;
};
template <class... A> bool tunesmith_launch(const char*, A&&...);
template <class... A> cudaError_t cudaLaunchKernel(const void*, dim3, dim3, A...);
template <class K, class... A> cudaError_t cudaLaunchKernel(K*, dim3, dim3, A...);
template <class... A> cudaError_t cudaMalloc(A...);
template <class... A> cudaError_t cudaMallocManaged(A...);
template <class... A> cudaError_t cudaMallocHost(A...);
template <class... A> cudaError_t cudaMemcpy(A...);
template <class... A> cudaError_t cudaMemcpyAsync(A...);
template <class... A> cudaError_t cudaMemcpyToSymbol(A...);
template <class... A> cudaError_t cudaMemset(A...);
template <class... A> cudaError_t cudaFree(A...);
template <class... A> cudaError_t cudaFuncSetAttribute(A...);
cudaError_t cudaDeviceSynchronize(); cudaError_t cudaGetLastError(); cudaError_t cudaPeekAtLastError();
const char* cudaGetErrorString(cudaError_t);
TUNESMITH_BOTH int printf(const char*, ...);
int atoi(const char*); double atof(const char*); void exit(int); void* malloc(size_t); void free(void*);
__device__ void __syncthreads(); __device__ int __syncthreads_or(int); __device__ int __syncthreads_and(int);
__device__ int __syncthreads_count(int); __device__ void __syncwarp(unsigned = ~0u);
__device__ void __threadfence(); __device__ void __threadfence_block(); __device__ void __threadfence_system();
__device__ void __trap(); __device__ void __nanosleep(unsigned); __device__ long long clock64(); __device__ long clock();
#define ATOMIC(name) template <class T, class V> __device__ T name(T*, V); template <class T, class V> __device__ T name(volatile T*, V);
ATOMIC(atomicAdd) ATOMIC(atomicSub) ATOMIC(atomicMin) ATOMIC(atomicMax) ATOMIC(atomicExch) ATOMIC(atomicAnd) ATOMIC(atomicOr)
ATOMIC(atomicXor) ATOMIC(atomicInc) ATOMIC(atomicDec) ATOMIC(atomicAdd_block) ATOMIC(atomicAdd_system)
template <class T, class A, class B> __device__ T atomicCAS(T*, A, B);
#define LOADING(name) template <class T> __device__ T name(const T*);
LOADING(__ldg) LOADING(__ldcs) LOADING(__ldca) LOADING(__ldcg) LOADING(__ldcv) LOADING(__ldlu)
#define STORING(name) template <class T> __device__ void name(T*, T);
STORING(__stcs) STORING(__stwb) STORING(__stcg) STORING(__stwt)
#define SHUFFLE(name) template <class T> __device__ T name(unsigned, T, int, int = 32);
SHUFFLE(__shfl_sync) SHUFFLE(__shfl_xor_sync) SHUFFLE(__shfl_down_sync) SHUFFLE(__shfl_up_sync)
__device__ unsigned __ballot_sync(unsigned, int); __device__ int __any_sync(unsigned, int); __device__ int __all_sync(unsigned, int);
__device__ unsigned __activemask(); __device__ unsigned __lanemask_lt();
template <class T> __device__ unsigned __match_any_sync(unsigned, T);
template <class T> __device__ T __reduce_add_sync(unsigned, T); template <class T> __device__ T __reduce_max_sync(unsigned, T);
template <class T> __device__ T __reduce_min_sync(unsigned, T); template <class T> __device__ T __reduce_or_sync(unsigned, T);
TUNESMITH_BOTH unsigned umin(unsigned, unsigned); TUNESMITH_BOTH unsigned umax(unsigned, unsigned);
TUNESMITH_BOTH long long llmin(long long, long long); TUNESMITH_BOTH long long llmax(long long, long long);
TUNESMITH_BOTH int __popc(unsigned); TUNESMITH_BOTH int __popcll(unsigned long long); TUNESMITH_BOTH int __clz(int);
TUNESMITH_BOTH int __clzll(long long); TUNESMITH_BOTH int __ffs(int); TUNESMITH_BOTH int __ffsll(long long);
TUNESMITH_BOTH unsigned __brev(unsigned); TUNESMITH_BOTH int __mul24(int, int); TUNESMITH_BOTH unsigned __umul24(unsigned, unsigned);
TUNESMITH_BOTH int __mulhi(int, int); TUNESMITH_BOTH unsigned __umulhi(unsigned, unsigned);
TUNESMITH_BOTH unsigned __byte_perm(unsigned, unsigned, unsigned);
TUNESMITH_BOTH unsigned __funnelshift_l(unsigned, unsigned, unsigned); TUNESMITH_BOTH unsigned __funnelshift_r(unsigned, unsigned, unsigned);
#define OF_THREE(T, end) TUNESMITH_BOTH T __viaddmax_##end(T, T, T); TUNESMITH_BOTH T __viaddmin_##end(T, T, T); TUNESMITH_BOTH T __vimax3_##end(T, T, T); \
    TUNESMITH_BOTH T __vimin3_##end(T, T, T); TUNESMITH_BOTH T __vimax_##end(T, T); TUNESMITH_BOTH T __vimin_##end(T, T);
OF_THREE(int, s32) OF_THREE(int, s32_relu) OF_THREE(unsigned, u32) OF_THREE(unsigned, s16x2) OF_THREE(unsigned, s16x2_relu) OF_THREE(unsigned, u16x2)
#define OF_TWO(T, end, ...) TUNESMITH_BOTH T __vibmax_##end(T, T, __VA_ARGS__); TUNESMITH_BOTH T __vibmin_##end(T, T, __VA_ARGS__);
OF_TWO(int, s32, bool*) OF_TWO(unsigned, u32, bool*) OF_TWO(unsigned, s16x2, bool*, bool*) OF_TWO(unsigned, u16x2, bool*, bool*)
TUNESMITH_BOTH int __dp4a(int, int, int); TUNESMITH_BOTH unsigned __dp4a(unsigned, unsigned, unsigned);
TUNESMITH_BOTH int __float_as_int(float); TUNESMITH_BOTH unsigned __float_as_uint(float); TUNESMITH_BOTH float __int_as_float(int);
TUNESMITH_BOTH float __uint_as_float(unsigned); TUNESMITH_BOTH long long __double_as_longlong(double);
TUNESMITH_BOTH double __longlong_as_double(long long); TUNESMITH_BOTH float __saturatef(float); TUNESMITH_BOTH float __frcp_rn(float);
TUNESMITH_BOTH int __float2int_rn(float); TUNESMITH_BOTH int __float2int_rd(float); TUNESMITH_BOTH int __float2int_ru(float);
TUNESMITH_BOTH int __float2int_rz(float); TUNESMITH_BOTH unsigned __float2uint_rn(float); TUNESMITH_BOTH float __int2float_rn(int);
TUNESMITH_BOTH float __uint2float_rn(unsigned); TUNESMITH_BOTH unsigned long long __umul64hi(unsigned long long, unsigned long long);
TUNESMITH_BOTH int __vabsdiffu4(unsigned, unsigned); TUNESMITH_BOTH unsigned __usad(unsigned, unsigned, unsigned);
template <class T> __device__ size_t __cvta_generic_to_shared(T*); __device__ unsigned __isShared(const void*);
#define MATH1(name) TUNESMITH_BOTH double name(double); TUNESMITH_BOTH float name(float); TUNESMITH_BOTH double name(int); TUNESMITH_BOTH float name##f(float);
MATH1(exp) MATH1(exp2) MATH1(exp10) MATH1(expm1) MATH1(log) MATH1(log2) MATH1(log10) MATH1(log1p) MATH1(sqrt) MATH1(rsqrt) MATH1(cbrt) MATH1(rcbrt)
MATH1(sin) MATH1(cos) MATH1(tan) MATH1(asin) MATH1(acos) MATH1(atan) MATH1(sinh) MATH1(cosh) MATH1(tanh) MATH1(asinh)
MATH1(acosh) MATH1(atanh) MATH1(erf) MATH1(erfc) MATH1(erfinv) MATH1(normcdf) MATH1(lgamma) MATH1(tgamma) MATH1(floor) MATH1(ceil) MATH1(round) MATH1(trunc)
MATH1(rint) MATH1(nearbyint) MATH1(fabs) MATH1(sinpi) MATH1(cospi) MATH1(logb) MATH1(j0) MATH1(j1)
#define MATH2(name) TUNESMITH_BOTH double name(double, double); TUNESMITH_BOTH float name(float, float); TUNESMITH_BOTH float name##f(float, float); \
    TUNESMITH_BOTH double name(double, float); TUNESMITH_BOTH double name(float, double); TUNESMITH_BOTH double name(float, int); TUNESMITH_BOTH double name(double, int);
MATH2(pow) MATH2(fmin) MATH2(fmax) MATH2(fmod) MATH2(atan2) MATH2(hypot) MATH2(copysign) MATH2(fdim) MATH2(remainder) MATH2(nextafter)
#define FAST1(name) TUNESMITH_BOTH float name(float);
FAST1(__expf) FAST1(__exp10f) FAST1(__logf) FAST1(__log2f) FAST1(__log10f) FAST1(__sinf) FAST1(__cosf) FAST1(__tanf) FAST1(__fsqrt_rn) FAST1(__frsqrt_rn)
TUNESMITH_BOTH float __powf(float, float); TUNESMITH_BOTH float __fdividef(float, float); TUNESMITH_BOTH float __fmaf_rn(float, float, float);
TUNESMITH_BOTH float __fadd_rn(float, float); TUNESMITH_BOTH float __fmul_rn(float, float); TUNESMITH_BOTH float __fdiv_rn(float, float);
TUNESMITH_BOTH float __fsub_rn(float, float); TUNESMITH_BOTH double __dadd_rn(double, double); TUNESMITH_BOTH double __dmul_rn(double, double);
TUNESMITH_BOTH double fma(double, double, double); TUNESMITH_BOTH float fma(float, float, float); TUNESMITH_BOTH float fmaf(float, float, float);
TUNESMITH_BOTH void sincosf(float, float*, float*); TUNESMITH_BOTH void sincos(double, double*, double*);
TUNESMITH_BOTH void sincospif(float, float*, float*); TUNESMITH_BOTH void __sincosf(float, float*, float*);
TUNESMITH_BOTH float ldexpf(float, int); TUNESMITH_BOTH double ldexp(double, int); TUNESMITH_BOTH float frexpf(float, int*);
TUNESMITH_BOTH float modff(float, float*); TUNESMITH_BOTH int abs(int); TUNESMITH_BOTH long abs(long); TUNESMITH_BOTH float abs(float);
TUNESMITH_BOTH double abs(double); TUNESMITH_BOTH long labs(long); TUNESMITH_BOTH long long llabs(long long);
TUNESMITH_BOTH bool isnan(double); TUNESMITH_BOTH bool isinf(double); TUNESMITH_BOTH bool isfinite(double); TUNESMITH_BOTH bool signbit(double);
TUNESMITH_BOTH float rnorm3df(float, float, float); TUNESMITH_BOTH float norm3df(float, float, float);
TUNESMITH_BOTH int rand(); TUNESMITH_BOTH float fdividef(float, float);
#define WHOLE1(name, T) TUNESMITH_BOTH T name(double); TUNESMITH_BOTH T name(float); TUNESMITH_BOTH T name##f(float);
WHOLE1(lrint, long) WHOLE1(lround, long) WHOLE1(llrint, long long) WHOLE1(llround, long long) WHOLE1(ilogb, int)
MATH1(erfcinv) MATH1(erfcx) MATH1(normcdfinv) MATH1(y0) MATH1(y1) MATH2(rhypot)
TUNESMITH_BOTH double frexp(double, int*); TUNESMITH_BOTH double modf(double, double*); TUNESMITH_BOTH void sincospi(double, double*, double*);
TUNESMITH_BOTH double scalbn(double, int); TUNESMITH_BOTH float scalbnf(float, int); TUNESMITH_BOTH double scalbln(double, long);
TUNESMITH_BOTH double nan(const char*); TUNESMITH_BOTH float nanf(const char*); TUNESMITH_BOTH float jnf(int, float); TUNESMITH_BOTH double jn(int, double);
TUNESMITH_BOTH double norm3d(double, double, double); TUNESMITH_BOTH double rnorm3d(double, double, double);
TUNESMITH_BOTH float norm4df(float, float, float, float); TUNESMITH_BOTH float rnorm4df(float, float, float, float);
#define ROUNDED(name, T, ...) TUNESMITH_BOTH T name##_rn(__VA_ARGS__); TUNESMITH_BOTH T name##_rz(__VA_ARGS__); \
    TUNESMITH_BOTH T name##_ru(__VA_ARGS__); TUNESMITH_BOTH T name##_rd(__VA_ARGS__);
#define ARITHMETIC(f, fma, T) ROUNDED(__##f##add, T, T, T) ROUNDED(__##f##sub, T, T, T) ROUNDED(__##f##mul, T, T, T) \
    ROUNDED(__##f##div, T, T, T) ROUNDED(__##f##rcp, T, T) ROUNDED(__##f##sqrt, T, T) ROUNDED(fma, T, T, T, T)
ARITHMETIC(f, __fmaf, float) ARITHMETIC(d, __fma, double)
#define CONVERTED(name, T) ROUNDED(__##name##2int, int, T) ROUNDED(__##name##2uint, unsigned, T) \
    ROUNDED(__##name##2ll, long long, T) ROUNDED(__##name##2ull, unsigned long long, T)
CONVERTED(float, float) CONVERTED(double, double)
ROUNDED(__int2float, float, int) ROUNDED(__uint2float, float, unsigned) ROUNDED(__ll2float, float, long long) ROUNDED(__ull2float, float, unsigned long long)
ROUNDED(__ll2double, double, long long) ROUNDED(__ull2double, double, unsigned long long) ROUNDED(__double2float, float, double)
TUNESMITH_BOTH double __int2double_rn(int); TUNESMITH_BOTH double __uint2double_rn(unsigned); TUNESMITH_BOTH int __double2hiint(double);
TUNESMITH_BOTH int __double2loint(double); TUNESMITH_BOTH double __hiloint2double(int, int); TUNESMITH_BOTH unsigned long long __brevll(unsigned long long);
TUNESMITH_BOTH long long __mul64hi(long long, long long); TUNESMITH_BOTH int __sad(int, int, unsigned); TUNESMITH_BOTH unsigned __uhadd(unsigned, unsigned);
TUNESMITH_BOTH int __rhadd(int, int); TUNESMITH_BOTH unsigned __urhadd(unsigned, unsigned); TUNESMITH_BOTH unsigned __fns(unsigned, unsigned, int);
TUNESMITH_BOTH unsigned __funnelshift_lc(unsigned, unsigned, unsigned); TUNESMITH_BOTH unsigned __funnelshift_rc(unsigned, unsigned, unsigned);
TUNESMITH_BOTH int __dp2a_lo(int, int, int); TUNESMITH_BOTH int __dp2a_hi(int, int, int);
#define VIDEO(name) TUNESMITH_BOTH unsigned __v##name##2(unsigned, unsigned); TUNESMITH_BOTH unsigned __v##name##4(unsigned, unsigned);
VIDEO(add) VIDEO(sub) VIDEO(addss) VIDEO(subss) VIDEO(addus) VIDEO(subus) VIDEO(cmpeq) VIDEO(cmpne) VIDEO(cmpgtu) VIDEO(cmpgts) VIDEO(minu) VIDEO(mins)
VIDEO(maxu) VIDEO(maxs) VIDEO(avgu) VIDEO(seteq) TUNESMITH_BOTH unsigned __vabs4(unsigned); TUNESMITH_BOTH unsigned __vneg4(unsigned);
#define LESS(T) TUNESMITH_BOTH T min(T, T); TUNESMITH_BOTH T max(T, T);
LESS(int) LESS(unsigned) LESS(long) LESS(unsigned long) LESS(long long) LESS(unsigned long long) LESS(float) LESS(double)
TUNESMITH_BOTH double min(float, double); TUNESMITH_BOTH double min(double, float); TUNESMITH_BOTH double max(float, double); TUNESMITH_BOTH double max(double, float);
TUNESMITH_BOTH unsigned min(int, unsigned); TUNESMITH_BOTH unsigned min(unsigned, int); TUNESMITH_BOTH unsigned max(int, unsigned); TUNESMITH_BOTH unsigned max(unsigned, int);
TUNESMITH_BOTH void* memcpy(void*, const void*, size_t); TUNESMITH_BOTH void* memset(void*, int, size_t);
namespace nvcuda { namespace std {} }
namespace std {}
namespace cuda { namespace std = ::std; }
template <class T> __device__ T tex1Dfetch(cudaTextureObject_t, int); template <class T> __device__ T tex2D(cudaTextureObject_t, float, float);
template <class T> __device__ T tex1D(cudaTextureObject_t, float); template <class T> __device__ T tex3D(cudaTextureObject_t, float, float, float);
// <cuda/std/cstdint>
typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned int uint32_t; typedef long int64_t; typedef unsigned long uint64_t;
typedef unsigned long uintptr_t; typedef long intptr_t; typedef int int_fast32_t; typedef unsigned int uint_fast32_t;
#define INT32_MAX 2147483647
#define INT32_MIN (-2147483647 - 1)
#define UINT32_MAX 4294967295U
#define INT16_MAX 32767
#define INT16_MIN (-32768)
#define UINT16_MAX 65535
#define INT8_MAX 127
#define INT8_MIN (-128)
#define UINT8_MAX 255
#define INT64_MAX 9223372036854775807L
#define INT64_MIN (-INT64_MAX - 1)
#define UINT64_MAX 18446744073709551615UL
// <cuda/std/cfloat>
#define FLT_MAX 3.402823466e+38F
#define FLT_MIN 1.175494351e-38F
#define FLT_EPSILON 1.192092896e-07F
#define DBL_MAX 1.7976931348623158e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16
#define FLT_DIG 6
#define DBL_DIG 15
// <cuda/std/climits>
#define CHAR_BIT 8
#define SCHAR_MAX 127
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295U
#define LONG_MAX 9223372036854775807L
#define LONG_MIN (-LONG_MAX - 1)
#define ULONG_MAX 18446744073709551615UL
#define LLONG_MAX 9223372036854775807LL
#define ULLONG_MAX 18446744073709551615ULL
// <cuda/std/cstddef>
#define offsetof(T, member) __builtin_offsetof(T, member)
namespace std { typedef unsigned long size_t; typedef long ptrdiff_t; typedef decltype(nullptr) nullptr_t; }
// <cuda/std/cstdint>
namespace std {
using ::int8_t; using ::uint8_t; using ::int16_t; using ::uint16_t; using ::int32_t; using ::uint32_t; using ::int64_t; using ::uint64_t;
}
// <cuda/std/algorithm>
namespace std {
template <class T> TUNESMITH_BOTH constexpr const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <class T> TUNESMITH_BOTH constexpr const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <class T> TUNESMITH_BOTH constexpr const T& clamp(const T& v, const T& a, const T& b) { return v < a ? a : b < v ? b : v; }
}
// <cuda/std/utility>
namespace std {
template <class T> TUNESMITH_BOTH void swap(T& a, T& b) { T c = a; a = b; b = c; }
template <class T> TUNESMITH_BOTH constexpr T&& move(T& a) { return static_cast<T&&>(a); }
}
// <cuda/std/limits>
namespace std {
#define LIMIT(NAME, VALUE) TUNESMITH_BOTH static constexpr T NAME() { return VALUE; }
#define LIMITS(MOST, LEAST, LOWEST, EPSILON, INFINITE, NONE) \
    LIMIT(max, MOST) LIMIT(min, LEAST) LIMIT(lowest, LOWEST) LIMIT(epsilon, EPSILON) LIMIT(infinity, INFINITE) LIMIT(quiet_NaN, NONE)
template <class T, bool W = __is_integral(T)> struct tunesmith_limits {
    TUNESMITH_BOTH static constexpr T max(); TUNESMITH_BOTH static constexpr T min(); TUNESMITH_BOTH static constexpr T lowest();
    TUNESMITH_BOTH static constexpr T infinity(); TUNESMITH_BOTH static constexpr T quiet_NaN(); TUNESMITH_BOTH static constexpr T epsilon();
};
template <class T> struct tunesmith_limits<T, true> {
    static constexpr T most = T(-1) > T(0) ? T(-1) : T((1ULL << (8 * sizeof(T) - 1)) - 1);
    LIMITS(most, T(-most - 1), T(-most - 1), 0, 0, 0)
};
template <> struct tunesmith_limits<float, false> {
    typedef float T; LIMITS(3.402823466e+38F, 1.175494351e-38F, -3.402823466e+38F, 1.192092896e-07F, __builtin_inff(), __builtin_nanf(""))
};
template <> struct tunesmith_limits<double, false> {
    typedef double T;
    LIMITS(1.7976931348623158e+308, 2.2250738585072014e-308, -1.7976931348623158e+308, 2.2204460492503131e-16, __builtin_inf(), __builtin_nan(""))
};
template <class T> struct numeric_limits : tunesmith_limits<T> {};
}
// <cuda/std/type_traits>
namespace std {
template <class A, A V> struct integral_constant { static constexpr A value = V; using type = integral_constant; };
using true_type = integral_constant<bool, true>; using false_type = integral_constant<bool, false>;
template <class A, class B> struct is_same { static constexpr bool value = false; };
template <class A> struct is_same<A, A> { static constexpr bool value = true; };
template <class A, class B> constexpr bool is_same_v = is_same<A, B>::value;
template <bool C, class A, class B> struct conditional { using type = A; };
template <class A, class B> struct conditional<false, A, B> { using type = B; };
template <bool C, class A, class B> using conditional_t = typename conditional<C, A, B>::type;
template <bool C, class A = void> struct enable_if {};
template <class A> struct enable_if<true, A> { using type = A; };
template <bool C, class A = void> using enable_if_t = typename enable_if<C, A>::type;
template <class A> struct is_integral { static constexpr bool value = __is_integral(A); };
template <class A> struct is_arithmetic { static constexpr bool value = __is_arithmetic(A); };
template <class A> constexpr bool is_integral_v = is_integral<A>::value;
template <class A> constexpr bool is_arithmetic_v = is_arithmetic<A>::value;
template <class A> struct is_floating_point { static constexpr bool value = false; };
template <> struct is_floating_point<float> { static constexpr bool value = true; };
template <> struct is_floating_point<double> { static constexpr bool value = true; };
template <class A> struct remove_reference { using type = A; };
template <class A> struct remove_reference<A&> { using type = A; };
template <class A> struct remove_reference<A&&> { using type = A; };
template <class A> struct remove_cv { using type = A; };
template <class A> struct remove_cv<const A> { using type = A; };
template <class A> struct decay { using type = typename remove_cv<typename remove_reference<A>::type>::type; };
template <class A> using decay_t = typename decay<A>::type; template <class A> using remove_reference_t = typename remove_reference<A>::type;
template <class A> using remove_cv_t = typename remove_cv<A>::type;
template <class A, class B> struct common_type { using type = decltype(true ? typename decay<A>::type() : typename decay<B>::type()); };
template <class A, class B> using common_type_t = typename common_type<A, B>::type;
}
// <cuda/std/cmath>
namespace std {
using ::exp; using ::exp2; using ::log; using ::log2; using ::log10; using ::log1p; using ::sqrt; using ::pow; using ::sin; using ::cos;
using ::tan; using ::tanh; using ::sinh; using ::cosh; using ::erf; using ::floor; using ::ceil; using ::round; using ::fmax; using ::fmin;
using ::fabs; using ::abs; using ::nearbyint; using ::isnan; using ::isinf; using ::atan2; using ::fmod; using ::trunc; using ::rint; using ::hypot; using ::fma;
}
// <cuda_fp16.h>
#define NARROW(T)                                                                                                \
    struct __attribute__((aligned(2))) T {                                                                       \
        unsigned short bits; T() = default; TUNESMITH_BOTH T(float); TUNESMITH_BOTH T(double); TUNESMITH_BOTH T(int); TUNESMITH_BOTH T(unsigned); \
        TUNESMITH_BOTH operator float() const; TUNESMITH_BOTH T& operator+=(T); TUNESMITH_BOTH T& operator*=(T); TUNESMITH_BOTH T& operator-=(T); \
    };                                                                                                           \
    TUNESMITH_BOTH T operator+(T, T); TUNESMITH_BOTH T operator-(T, T); TUNESMITH_BOTH T operator*(T, T); TUNESMITH_BOTH T operator/(T, T); \
    TUNESMITH_BOTH bool operator<(T, T); TUNESMITH_BOTH bool operator>(T, T); TUNESMITH_BOTH bool operator==(T, T); \
    TUNESMITH_BOTH T __hadd(T, T); TUNESMITH_BOTH T __hsub(T, T); TUNESMITH_BOTH T __hmul(T, T); TUNESMITH_BOTH T __hdiv(T, T); TUNESMITH_BOTH T __hfma(T, T, T); \
    TUNESMITH_BOTH T __hmax(T, T); TUNESMITH_BOTH T __hmin(T, T); TUNESMITH_BOTH bool __hgt(T, T); TUNESMITH_BOTH bool __hlt(T, T); TUNESMITH_BOTH bool __hge(T, T); \
    TUNESMITH_BOTH T __hneg(T); TUNESMITH_BOTH T hexp(T); TUNESMITH_BOTH T hlog(T); TUNESMITH_BOTH T hsqrt(T); TUNESMITH_BOTH T hrsqrt(T); TUNESMITH_BOTH T htanh(T); TUNESMITH_BOTH bool __hisnan(T); TUNESMITH_BOTH T __habs(T); \
    TUNESMITH_BOTH T hrcp(T); TUNESMITH_BOTH T hsin(T); TUNESMITH_BOTH T hcos(T); TUNESMITH_BOTH T hceil(T); TUNESMITH_BOTH T hfloor(T); TUNESMITH_BOTH T htrunc(T); \
    TUNESMITH_BOTH T hrint(T); TUNESMITH_BOTH T hexp2(T); TUNESMITH_BOTH T hlog2(T); TUNESMITH_BOTH T __hmul_sat(T, T); TUNESMITH_BOTH T __hfma_relu(T, T, T); \
    TUNESMITH_BOTH bool __heq(T, T); TUNESMITH_BOTH bool __hne(T, T); TUNESMITH_BOTH bool __hle(T, T); TUNESMITH_BOTH bool __hisinf(T); \
    TUNESMITH_BOTH T __hadd_rn(T, T); TUNESMITH_BOTH T __hsub_rn(T, T); TUNESMITH_BOTH T __hmul_rn(T, T); TUNESMITH_BOTH T __hadd_sat(T, T); \
    TUNESMITH_BOTH T __hsub_sat(T, T); TUNESMITH_BOTH T __hfma_sat(T, T, T); TUNESMITH_BOTH T __hmax_nan(T, T); TUNESMITH_BOTH T __hmin_nan(T, T); \
    TUNESMITH_BOTH T hexp10(T); TUNESMITH_BOTH T hlog10(T); TUNESMITH_BOTH T htanh_approx(T); TUNESMITH_BOTH bool __hequ(T, T); TUNESMITH_BOTH bool __hneu(T, T); \
    TUNESMITH_BOTH bool __hltu(T, T); TUNESMITH_BOTH bool __hleu(T, T); TUNESMITH_BOTH bool __hgtu(T, T); TUNESMITH_BOTH bool __hgeu(T, T);
#define NARROW_PAIR(T, P)                                                                                        \
    struct __attribute__((aligned(4))) P { T x, y; P() = default; TUNESMITH_BOTH P(T, T); };                      \
    TUNESMITH_BOTH P operator+(P, P); TUNESMITH_BOTH P operator*(P, P); TUNESMITH_BOTH P operator-(P, P); \
    TUNESMITH_BOTH P __hadd2(P, P); TUNESMITH_BOTH P __hsub2(P, P); TUNESMITH_BOTH P __hmul2(P, P); TUNESMITH_BOTH P __hfma2(P, P, P); TUNESMITH_BOTH P __hmax2(P, P); \
    TUNESMITH_BOTH P h2exp(P); TUNESMITH_BOTH P h2rcp(P); TUNESMITH_BOTH P __hneg2(P); TUNESMITH_BOTH P __hmin2(P, P); TUNESMITH_BOTH P __habs2(P); \
    TUNESMITH_BOTH P __h2div(P, P); TUNESMITH_BOTH P h2log(P); TUNESMITH_BOTH P h2sqrt(P); TUNESMITH_BOTH P h2rsqrt(P); TUNESMITH_BOTH P h2exp2(P); \
    TUNESMITH_BOTH P __lows2half2(P, P); TUNESMITH_BOTH P __highs2half2(P, P); TUNESMITH_BOTH P __lowhigh2highlow(P); TUNESMITH_BOTH P __low2half2(P); \
    TUNESMITH_BOTH P __high2half2(P); COMPARED(eq, P) COMPARED(ne, P) COMPARED(lt, P) COMPARED(le, P) COMPARED(gt, P) COMPARED(ge, P) \
    TUNESMITH_BOTH P __hadd2_rn(P, P); TUNESMITH_BOTH P __hsub2_rn(P, P); TUNESMITH_BOTH P __hmul2_rn(P, P); TUNESMITH_BOTH P __hadd2_sat(P, P); \
    TUNESMITH_BOTH P __hsub2_sat(P, P); TUNESMITH_BOTH P __hmul2_sat(P, P); TUNESMITH_BOTH P __hfma2_sat(P, P, P); TUNESMITH_BOTH P __hfma2_relu(P, P, P); \
    TUNESMITH_BOTH P __hcmadd(P, P, P); TUNESMITH_BOTH P __hmax2_nan(P, P); TUNESMITH_BOTH P __hmin2_nan(P, P); TUNESMITH_BOTH P __hisnan2(P); \
    TUNESMITH_BOTH P h2ceil(P); TUNESMITH_BOTH P h2floor(P); TUNESMITH_BOTH P h2rint(P); TUNESMITH_BOTH P h2trunc(P); TUNESMITH_BOTH P h2sin(P); \
    TUNESMITH_BOTH P h2cos(P); TUNESMITH_BOTH P h2tanh(P); TUNESMITH_BOTH P h2tanh_approx(P); TUNESMITH_BOTH P h2exp10(P); TUNESMITH_BOTH P h2log2(P); TUNESMITH_BOTH P h2log10(P);
#define COMPARED(name, P)                                                                                        \
    TUNESMITH_BOTH P __h##name##2(P, P); TUNESMITH_BOTH bool __hb##name##2(P, P); TUNESMITH_BOTH unsigned __h##name##2_mask(P, P); \
    TUNESMITH_BOTH P __h##name##u2(P, P); TUNESMITH_BOTH bool __hb##name##u2(P, P); TUNESMITH_BOTH unsigned __h##name##u2_mask(P, P);
#define OF_WHOLE(name, T)                                                                                        \
    ROUNDED(__int2##name, T, int) ROUNDED(__uint2##name, T, unsigned) ROUNDED(__short2##name, T, short) ROUNDED(__ushort2##name, T, unsigned short) \
    ROUNDED(__ll2##name, T, long long) ROUNDED(__ull2##name, T, unsigned long long) ROUNDED(__float2##name, T, float) \
    ROUNDED(__##name##2short, short, T) ROUNDED(__##name##2ushort, unsigned short, T) CONVERTED(name, T) \
    TUNESMITH_BOTH char __##name##2char_rz(T); TUNESMITH_BOTH unsigned char __##name##2uchar_rz(T);
NARROW(__half)
NARROW_PAIR(__half, __half2)
typedef __half half; typedef __half2 half2; typedef __half nv_half;
struct __half_raw { unsigned short x; TUNESMITH_BOTH operator __half() const; };
struct __half2_raw { unsigned short x, y; TUNESMITH_BOTH operator __half2() const; };
TUNESMITH_BOTH float __half2float(__half); TUNESMITH_BOTH __half __float2half(float);
TUNESMITH_BOTH float2 __half22float2(__half2); TUNESMITH_BOTH __half2 __float22half2_rn(float2); TUNESMITH_BOTH __half2 __floats2half2_rn(float, float);
TUNESMITH_BOTH __half2 __half2half2(__half); TUNESMITH_BOTH __half2 __float2half2_rn(float); TUNESMITH_BOTH __half2 __halves2half2(__half, __half);
TUNESMITH_BOTH __half __low2half(__half2); TUNESMITH_BOTH __half __high2half(__half2); TUNESMITH_BOTH float __low2float(__half2); TUNESMITH_BOTH float __high2float(__half2);
TUNESMITH_BOTH __half __double2half(double); TUNESMITH_BOTH __half __ushort_as_half(unsigned short); TUNESMITH_BOTH unsigned short __half_as_ushort(__half);
TUNESMITH_BOTH __half __short_as_half(short); TUNESMITH_BOTH short __half_as_short(__half); TUNESMITH_BOTH __half2 make_half2(__half, __half);
OF_WHOLE(half, __half)
// <cuda_bf16.h>
NARROW(__nv_bfloat16)
NARROW_PAIR(__nv_bfloat16, __nv_bfloat162)
typedef __nv_bfloat16 nv_bfloat16; typedef __nv_bfloat162 nv_bfloat162;
struct __nv_bfloat16_raw { unsigned short x; TUNESMITH_BOTH operator __nv_bfloat16() const; };
struct __nv_bfloat162_raw { unsigned short x, y; TUNESMITH_BOTH operator __nv_bfloat162() const; };
TUNESMITH_BOTH __nv_bfloat162 __float2bfloat162_rn(float);
TUNESMITH_BOTH float __bfloat162float(__nv_bfloat16); TUNESMITH_BOTH __nv_bfloat16 __float2bfloat16(float);
OF_WHOLE(bfloat16, __nv_bfloat16)
TUNESMITH_BOTH __nv_bfloat16 __low2bfloat16(__nv_bfloat162); TUNESMITH_BOTH __nv_bfloat16 __high2bfloat16(__nv_bfloat162); TUNESMITH_BOTH __nv_bfloat162 __low2bfloat162(__nv_bfloat162);
TUNESMITH_BOTH __nv_bfloat162 __high2bfloat162(__nv_bfloat162); TUNESMITH_BOTH __nv_bfloat162 __lows2bfloat162(__nv_bfloat162, __nv_bfloat162); TUNESMITH_BOTH __nv_bfloat162 __highs2bfloat162(__nv_bfloat162, __nv_bfloat162);
TUNESMITH_BOTH __nv_bfloat16 __short_as_bfloat16(short); TUNESMITH_BOTH short __bfloat16_as_short(__nv_bfloat16); TUNESMITH_BOTH __nv_bfloat162 make_bfloat162(__nv_bfloat16, __nv_bfloat16);
TUNESMITH_BOTH float2 __bfloat1622float2(__nv_bfloat162); TUNESMITH_BOTH __nv_bfloat162 __float22bfloat162_rn(float2); TUNESMITH_BOTH __nv_bfloat162 __floats2bfloat162_rn(float, float);
TUNESMITH_BOTH __nv_bfloat16 __double2bfloat16(double); TUNESMITH_BOTH __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16); TUNESMITH_BOTH __nv_bfloat16 __ushort_as_bfloat16(unsigned short); TUNESMITH_BOTH unsigned short __bfloat16_as_ushort(__nv_bfloat16);
TUNESMITH_BOTH float __low2float(__nv_bfloat162); TUNESMITH_BOTH float __high2float(__nv_bfloat162); TUNESMITH_BOTH __nv_bfloat162 __halves2bfloat162(__nv_bfloat16, __nv_bfloat16);
// <cuda_fp8.h>
typedef unsigned char __nv_fp8_storage_t;
struct __nv_fp8_e4m3 { unsigned char __x; __nv_fp8_e4m3() = default; TUNESMITH_BOTH explicit __nv_fp8_e4m3(float); TUNESMITH_BOTH explicit operator float() const; };
struct __nv_fp8_e5m2 { unsigned char __x; __nv_fp8_e5m2() = default; TUNESMITH_BOTH explicit __nv_fp8_e5m2(float); TUNESMITH_BOTH explicit operator float() const; };
// <cuComplex.h>
typedef float2 cuFloatComplex; typedef float2 cuComplex; typedef double2 cuDoubleComplex;
#define COMPLEX(T, C, made, f) TUNESMITH_BOTH T cuCreal##f(C); TUNESMITH_BOTH T cuCimag##f(C); TUNESMITH_BOTH T cuCabs##f(C); \
    TUNESMITH_BOTH C made(T, T); TUNESMITH_BOTH C cuConj##f(C); TUNESMITH_BOTH C cuCadd##f(C, C); TUNESMITH_BOTH C cuCsub##f(C, C); \
    TUNESMITH_BOTH C cuCmul##f(C, C); TUNESMITH_BOTH C cuCdiv##f(C, C); TUNESMITH_BOTH C cuCfma##f(C, C, C);
COMPLEX(float, float2, make_cuFloatComplex, f) COMPLEX(double, double2, make_cuDoubleComplex, )
TUNESMITH_BOTH float2 make_cuComplex(float, float); TUNESMITH_BOTH float2 cuComplexDoubleToFloat(double2); TUNESMITH_BOTH double2 cuComplexFloatToDouble(float2);
// <cooperative_groups.h>
namespace cooperative_groups {
struct thread_group { __device__ void sync() const; __device__ unsigned size() const; __device__ unsigned thread_rank() const; };
struct thread_block : thread_group { __device__ dim3 group_index() const; __device__ dim3 thread_index() const; __device__ dim3 group_dim() const; };
struct grid_group : thread_group { __device__ bool is_valid() const; };
template <unsigned N, class P = void> struct thread_block_tile : thread_group {
    template <class T> __device__ T shfl(T, int) const; template <class T> __device__ T shfl_down(T, int) const;
    template <class T> __device__ T shfl_up(T, int) const; template <class T> __device__ T shfl_xor(T, int) const;
    __device__ unsigned meta_group_rank() const; __device__ unsigned meta_group_size() const; __device__ unsigned ballot(int) const;
    __device__ int any(int) const; __device__ int all(int) const;
};
struct coalesced_group : thread_group {};
__device__ thread_block this_thread_block(); __device__ grid_group this_grid(); __device__ coalesced_group coalesced_threads();
template <unsigned N, class P> __device__ thread_block_tile<N, P> tiled_partition(const P&);
__device__ thread_group tiled_partition(const thread_group&, unsigned);
template <class G> __device__ void sync(const G&);
}
// <cooperative_groups/reduce.h>
namespace cooperative_groups {
template <class T> struct plus {}; template <class T> struct greater {}; template <class T> struct less {};
template <class G, class T, class O> __device__ T reduce(const G&, T, O);
}
// <cuda/std/functional>
namespace std {
template <class T = void> struct plus { template <class A, class B> TUNESMITH_BOTH auto operator()(A a, B b) const { return a + b; } };
}
namespace cub { struct Sum : std::plus<> {}; }
// <cuda/functional>
namespace cuda {
template <class T = void> struct maximum { template <class A, class B> TUNESMITH_BOTH auto operator()(A a, B b) const { return a < b ? b : a; } };
template <class T = void> struct minimum { template <class A, class B> TUNESMITH_BOTH auto operator()(A a, B b) const { return b < a ? b : a; } };
}
namespace cub { struct Max : cuda::maximum<> {}; struct Min : cuda::minimum<> {}; }
// <cub/block/block_reduce.cuh>
#define PRIMITIVE(NAME, BYTES) struct TempStorage { char bytes[BYTES]; }; __device__ NAME(); __device__ NAME(TempStorage&); __device__ NAME(TempStorage&, int);
#define REDUCING                                                                                                          \
    __device__ T Sum(T); __device__ T Sum(T, int); template <int K> __device__ T Sum(T (&)[K]);                           \
    template <class O> __device__ T Reduce(T, O); template <class O> __device__ T Reduce(T, O, int); template <int K, class O> __device__ T Reduce(T (&)[K], O);
#define SCAN(NAME) template <class... M> __device__ void NAME(T, T&, M&&...); template <int K, class... M> __device__ void NAME(T (&)[K], T (&)[K], M&&...);
#define SCANNING                                                                                                          \
    SCAN(ExclusiveSum) SCAN(InclusiveSum) SCAN(ExclusiveScan) SCAN(InclusiveScan)
namespace cub {
enum BlockReduceAlgorithm { BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS };
template <class T, int X, BlockReduceAlgorithm A = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1> struct BlockReduce {
    PRIMITIVE(BlockReduce, sizeof(T) * (X * Y * Z / 32 + 2)) REDUCING
};
}
// <cub/warp/warp_reduce.cuh>
namespace cub { template <class T, int N = 32> struct WarpReduce { PRIMITIVE(WarpReduce, 1) REDUCING }; }
// <cub/block/block_scan.cuh>
namespace cub {
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };
template <class T, int X, BlockScanAlgorithm A = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1> struct BlockScan {
    PRIMITIVE(BlockScan, sizeof(T) * (X * Y * Z + 34)) SCANNING
};
}
// <cub/warp/warp_scan.cuh>
namespace cub { template <class T, int N = 32> struct WarpScan { PRIMITIVE(WarpScan, sizeof(T) * N * 3 / 2) SCANNING }; }
// <cub/block/block_load.cuh>
namespace cub {
enum BlockLoadAlgorithm { BLOCK_LOAD_DIRECT, BLOCK_LOAD_STRIPED, BLOCK_LOAD_VECTORIZE, BLOCK_LOAD_TRANSPOSE, BLOCK_LOAD_WARP_TRANSPOSE, BLOCK_LOAD_WARP_TRANSPOSE_TIMESLICED };
template <class T, int X, int N, BlockLoadAlgorithm A = BLOCK_LOAD_DIRECT, int Y = 1, int Z = 1> struct BlockLoad {
    PRIMITIVE(BlockLoad, A < BLOCK_LOAD_TRANSPOSE ? 1 : sizeof(T) * X * Y * Z * N)
    template <class I> __device__ void Load(I from, T (&to)[N]) { for (int i = 0; i < N; ++i) to[i] = from[threadIdx.x * N + i]; }
    template <class I> __device__ void Load(I from, T (&to)[N], int valid) { for (int i = 0; i < N; ++i) if (threadIdx.x * N + i < valid) to[i] = from[threadIdx.x * N + i]; }
    template <class I, class D> __device__ void Load(I from, T (&to)[N], int valid, D other) { for (int i = 0; i < N; ++i) { to[i] = other; if (threadIdx.x * N + i < valid) to[i] = from[threadIdx.x * N + i]; } }
};
}
// <cub/block/block_store.cuh>
namespace cub {
enum BlockStoreAlgorithm { BLOCK_STORE_DIRECT, BLOCK_STORE_STRIPED, BLOCK_STORE_VECTORIZE, BLOCK_STORE_TRANSPOSE, BLOCK_STORE_WARP_TRANSPOSE, BLOCK_STORE_WARP_TRANSPOSE_TIMESLICED };
template <class T, int X, int N, BlockStoreAlgorithm A = BLOCK_STORE_DIRECT, int Y = 1, int Z = 1> struct BlockStore {
    PRIMITIVE(BlockStore, A < BLOCK_STORE_TRANSPOSE ? 1 : sizeof(T) * X * Y * Z * N)
    template <class I> __device__ void Store(I to, T (&from)[N]) { for (int i = 0; i < N; ++i) to[threadIdx.x * N + i] = from[i]; }
    template <class I> __device__ void Store(I to, T (&from)[N], int valid) { for (int i = 0; i < N; ++i) if (threadIdx.x * N + i < valid) to[threadIdx.x * N + i] = from[i]; }
};
}
// <mma.h>
namespace nvcuda { namespace wmma {
struct matrix_a {}; struct matrix_b {}; struct accumulator {}; struct row_major {}; struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision { using tf32 = float; }
__device__ float __float_to_tf32(float);
template <class U, int M, int N, int K, class T, class L = void> struct fragment { T x[8]; static const int num_elements = 8; };
template <class F, class T> __device__ void fill_fragment(F&, T);
template <class F, class T> __device__ void load_matrix_sync(F&, const T*, unsigned); template <class F, class T> __device__ void load_matrix_sync(F&, const T*, unsigned, layout_t);
template <class F, class T> __device__ void store_matrix_sync(T*, const F&, unsigned, layout_t);
template <class D, class A, class B, class C> __device__ void mma_sync(D&, const A&, const B&, const C&);
} }
// <cuda_pipeline.h>
__device__ void __pipeline_memcpy_async(void*, const void*, size_t, size_t = 0); __device__ void __pipeline_commit(); __device__ void __pipeline_wait_prior(size_t);
// <math_constants.h>
#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#define CUDART_INF __builtin_inf()
#define CUDART_NAN __builtin_nan("")
#define CUDART_MAX_NORMAL_F 3.402823466e38f
#define CUDART_MIN_DENORM_F 1.401298464e-45f
#define CUDART_ZERO_F 0.0f
#define CUDART_ZERO 0.0
#define CUDART_ONE_F 1.0f
#define CUDART_ONE 1.0
#define CUDART_NEG_ZERO_F -0.0f
#define CUDART_NEG_ZERO -0.0
#define CUDART_SQRT_HALF_F 0.7071067811865476f
#define CUDART_SQRT_HALF 0.7071067811865476
#define CUDART_SQRT_TWO_F 1.4142135623730951f
#define CUDART_SQRT_TWO 1.4142135623730951
#define CUDART_THIRD_F 0.3333333333333333f
#define CUDART_THIRD 0.3333333333333333
#define CUDART_PIO4_F 0.7853981633974483f
#define CUDART_PIO4 0.7853981633974483
#define CUDART_PIO2_F 1.5707963267948966f
#define CUDART_PIO2 1.5707963267948966
#define CUDART_3PIO4_F 2.356194490192345f
#define CUDART_3PIO4 2.356194490192345
#define CUDART_2_OVER_PI_F 0.6366197723675814f
#define CUDART_2_OVER_PI 0.6366197723675814
#define CUDART_PI_F 3.141592653589793f
#define CUDART_PI 3.141592653589793
#define CUDART_L2E_F 1.4426950408889634f
#define CUDART_L2E 1.4426950408889634
#define CUDART_L2T_F 3.321928094887362f
#define CUDART_L2T 3.321928094887362
#define CUDART_LG2_F 0.3010299956639812f
#define CUDART_LG2 0.3010299956639812
#define CUDART_LGE_F 0.4342944819032518f
#define CUDART_LGE 0.4342944819032518
#define CUDART_LN2_F 0.6931471805599453f
#define CUDART_LN2 0.6931471805599453
#define CUDART_LNT_F 2.302585092994046f
#define CUDART_LNT 2.302585092994046
// <stub>
#define __NVCC__ 1
#define HIP_DYNAMIC_SHARED(type, name) extern __shared__ type name[];
#define USE_CUDA 1
#define WITH_CUDA 1
#define HAVE_CUDA 1
#define ENABLE_CUDA 1
#define BUILD_CUDA 1
#define COMPILE_CUDA 1
#define __shfl(...) __shfl_sync(0xffffffffu, __VA_ARGS__)
#define __shfl_xor(...) __shfl_xor_sync(0xffffffffu, __VA_ARGS__)
#define __shfl_down(...) __shfl_down_sync(0xffffffffu, __VA_ARGS__)
#define __shfl_up(...) __shfl_up_sync(0xffffffffu, __VA_ARGS__)
#define __ballot(predicate) __ballot_sync(0xffffffffu, predicate)
#define __any(predicate) __any_sync(0xffffffffu, predicate)
#define __all(predicate) __all_sync(0xffffffffu, predicate)
typedef float2 cufftComplex;
typedef double2 cufftDoubleComplex;
#define CUDA_VERSION 13000
#define CUDART_VERSION 13000
#define assert(condition) ((void)0)
#define NULL 0
#define cudaGridDependencySynchronize() ((void)0)
#define cudaTriggerProgrammaticLaunchCompletion() ((void)0)
#define INFINITY __builtin_bit_cast(float, 0x7f800000)
#define HUGE_VALF __builtin_bit_cast(float, 0x7f800000)
#define NAN __builtin_bit_cast(float, 0x7fc00000)
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
typedef long off_t; typedef long ssize_t; typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned int uint; typedef unsigned long ulong;
