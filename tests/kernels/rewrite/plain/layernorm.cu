__global__ void layernorm(const float* x, const float* gamma, float* y, int n) {
    __shared__ float total[256];
    __shared__ float squares[256];
    int t = threadIdx.x;
    float a = 0, b = 0;
    for (int j = t; j < n; j += blockDim.x) { float v = x[blockIdx.x * n + j]; a += v; b += v * v; }
    total[t] = a;
    squares[t] = b;
    __syncthreads();
    for (int o = 128; o > 0; o /= 2) {
        if (t < o) { total[t] += total[t + o]; }
        __syncthreads();
    }
    for (int o = 128; o > 0; o /= 2) {
        if (t < o) { squares[t] = squares[t] + squares[t + o]; }
        __syncthreads();
    }
    float mean = total[0] / n, scale = rsqrtf(squares[0] / n - mean * mean + 1e-5f);
    for (int j = t; j < n; j += blockDim.x)
        y[blockIdx.x * n + j] = (x[blockIdx.x * n + j] - mean) * scale * gamma[j];
}
