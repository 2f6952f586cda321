extern "C" __global__ void k(const float* a, const float* b, float* y, int n) {
    int x = threadIdx.x, y_ = threadIdx.y, r = blockIdx.y * 16 + y_, c = blockIdx.x * 16 + x;
    __shared__ float s[16][16], t[16][17];
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        __syncthreads();
        s[y_][x] = r < n && k + x < n ? a[r * n + k + x] : 0;
        t[x][y_] = k + y_ < n && c < n ? __ldg(&b[(k + y_) * n + c]) : 0;
        __syncthreads();
        for (int i = 0; i < 16; ++i) sum = fmaf(s[y_][i], t[x][i], sum);
    }
    if (r < n && c < n) y[r * n + c] = sum;
}
