extern "C" __global__ void k(const float* a, const float* b, float* y, int n) {
    int x = threadIdx.x, y_ = threadIdx.y, r = blockIdx.y * 16 + y_, c = blockIdx.x * 16 + x;
    __shared__ float s[16][16], t[16][17];
    float sum = 0;
    for (int m = 0; m < n / 16; ++m) {
        s[y_][x] = r >= n ? 0 : a[r * n + m * 16 + x];
        t[y_][x] = c >= n ? 0 : b[(m * 16 + y_) * n + c];
        __syncthreads();
        for (int i = 0; i < 16; ++i) sum += s[y_][i] * t[i][x];
        __syncthreads();
    }
    if (r < n && c < n) y[r * n + c] = sum;
}
