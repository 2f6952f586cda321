extern "C" __global__ void k(const float* a, const float* b, float* y, int n) {
    const int row = blockIdx.x, col = blockIdx.y, r = threadIdx.x / 16, c = threadIdx.x % 16;
    __shared__ float s[16 * 16], t[16 * 16];
    float sum = 0;
    a += row * 16 * n;
    b += col * 16;
    y += row * 16 * n + col * 16;
    for (int k = 0; k < n; k += 16) {
        s[r * 16 + c] = a[r * n + c];
        t[r * 16 + c] = b[r * n + c];
        __syncthreads();
        a += 16;
        b += 16 * n;
        for (int i = 0; i < 16; ++i) sum += s[r * 16 + i] * t[i * 16 + c];
        __syncthreads();
    }
    y[r * n + c] = 2 * sum;
}
