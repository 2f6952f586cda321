// Classes and functions as arguments of a template.
namespace own {
namespace {
struct Four { static const int count = 4; };
__device__ int one(int v) { return v; }
typedef int (*F)(int);
template <class P, F f = one> __global__ void k(int* y) { y[threadIdx.x] = f(P::count); }
}
}
void host(int* y) { own::k<own::Four><<<1, 64>>>(y); }
