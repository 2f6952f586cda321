__global__ void stencil1d(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float left = i > 0 ? x[i - 1] : x[i], right = i < n - 1 ? x[i + 1] : x[i];
        y[i] = 0.25f * left + 0.5f * x[i] + 0.25f * right;
    }
}
