__global__ void scale_rows(const float* x, const float* s, float* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        y[blockIdx.x * n + i] = x[blockIdx.x * n + i] * s[blockIdx.x];
}
