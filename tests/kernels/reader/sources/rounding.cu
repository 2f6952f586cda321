// Functions that CUDA rounds and converts with.
#include <cuda_fp16.h>
__global__ void k(const float* x, __half* h, float* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    h[i] = hceil(__float2half(x[i]));
    y[i] = __fmul_rz(x[i], 2.0f) + lrint(x[i]) + __float2ll_rd(x[i]);
}
