__global__ void depthwise(const float* x, const float* f, float* y, int c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, k = blockIdx.y * blockDim.y + threadIdx.y;
    if (i < n && k < c) {
        float sum = 0;
        for (int t = -1; t <= 1; ++t)
            if (i + t >= 0 && i + t < n) sum += x[k * n + i + t] * f[k * 3 + t + 1];
        y[k * n + i] = sum;
    }
}
