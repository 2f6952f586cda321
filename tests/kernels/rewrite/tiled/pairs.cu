extern "C" __global__ void k(const float* a, const float* b, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    __shared__ float s[64];
    float sum = 0;
    for (int m = 0; m < (n + 63) / 64; ++m) {
        s[threadIdx.x] = m * 64 + threadIdx.x < n ? a[m * 64 + threadIdx.x] : 0;
        __syncthreads();
        for (int k = 0; k < 64; ++k) sum += s[k] / (1 + b[i] * b[i]);
        __syncthreads();
    }
    if (i < n) y[i] = sum;
}
