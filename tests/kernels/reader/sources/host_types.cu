struct Host { std::vector<int> of; };
template <class T> struct Twice { static __device__ T of(T x) { return x + x; } };
template <class T> struct Twice<T*> { static __device__ T of(T* x) { return *x + *x; } };
template <> struct Twice<Host> { static __device__ int of(Host x) { return x.of[0]; } };
__device__ inline at::Half atomicAdd(at::Half* to, at::Half more) {}
template <int N, class T> __global__ void k(T* x, T* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&y[i], Twice<T*>::of(x + i));
}
