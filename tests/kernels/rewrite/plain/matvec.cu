__global__ void matvec(const float* A, const float* x, float* y, int m, int n) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r < m) {
        float sum = 0;
        for (int k = 0; k < n; ++k) sum += A[r * n + k] * x[k];
        y[r] = sum;
    }
}
