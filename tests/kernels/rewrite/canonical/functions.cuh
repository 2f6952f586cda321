template <typename S, int TIMES> __device__ void twice(const S* x, S* y, int count, float more) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    y[i] = TIMES * x[i] + (S)more;
}
template <typename S> __device__ void of_type(S* y, const S* __restrict__ x, const int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x; const S before = i < n ? y[i] : S(0);
    if (i < n) y[i] = 2 * x[i] + before;
}
__device__ void swapped(float* x, const float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = y[i];
}
__device__ void narrow(const float* x, float* y, short n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i];
}
__device__ void by_reference(const float* x, float* y, int& n) { of_type(y, x, n); n = 3; }
__device__ int seven = 7;
__device__ void local(const float* x, float* into) { int n = 203; twice<float, 7>(x, into, n, seven); }
