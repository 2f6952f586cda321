extern "C" __global__ void k(const float* a, const float* b, float* y, int n) {
    int x = threadIdx.x, y_ = threadIdx.y, r = blockIdx.y * 16 + y_, c = blockIdx.x * 16 + x;
    __shared__ float s[256], t[256];
    float sum = 0;
    const int tiles = (n + 15) / 16;
    for (int m = 0; m < tiles; ++m) {
        const int k = m * 16 + x, other = blockIdx.x * 16 + y_;
        s[y_ * 16 + x] = r < n && k < n ? a[r * n + k] : 0;
        t[x * 16 + y_] = k < n && other < n ? b[other * n + k] : 0;
        __syncthreads();
        for (int i = 0; i < 16; ++i) sum += s[y_ * 16 + i] * t[i * 16 + x];
        __syncthreads();
    }
    if (r < n && c < n) y[r * n + c] = sum;
}
