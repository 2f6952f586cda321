// Names of the namespaces around.
namespace own {
namespace cuda {
typedef int index_t;
__device__ inline float twice(float x) { return x + x; }
}
namespace ops {
__global__ void k(const float* x, float* y, cuda::index_t n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = cuda::twice(x[i]);
}
}
}
