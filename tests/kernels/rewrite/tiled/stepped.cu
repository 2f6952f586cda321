extern "C" __global__ void k(const float* a, const float* b, float* y, int n) {
    int bx = blockIdx.x, by = blockIdx.y, x = threadIdx.x, y_ = threadIdx.y;
    int begin = n * 16 * by, end = begin + n - 1;
    float sum = 0;
    for (int k = begin, l = 16 * bx; k <= end; k += 16, l += 16 * n) {
        __shared__ float s[16][16];
        __shared__ float t[16][16];
        s[y_][x] = a[k + n * y_ + x];
        t[y_][x] = b[l + n * y_ + x];
        __syncthreads();
        for (int i = 0; i < 16; ++i) sum += s[y_][i] * t[i][x];
        __syncthreads();
    }
    y[n * 16 * by + 16 * bx + n * y_ + x] = sum;
}
