// In place; the second loop writes in both branches, but not for certain.
extern "C" __global__ void k(const float* x, float* y, int n) {
    __shared__ float most[64];
    float* row = y + (blockIdx.y * 2 + blockIdx.x) * n;
    const int run = (n + blockDim.x - 1) / blockDim.x, first = threadIdx.x * run;
    const int end = min(first + run, n);
    float m = -1e30f;
    for (int c = first; c <= end - 1; c++) {
        m = fmaxf(m, row[c] - x[(blockIdx.y * 2 + blockIdx.x) * n + c]);
        row[c] = m;
    }
    most[threadIdx.x] = m;
    __syncthreads();
    float before = -1e30f;
    for (int t = 0; t < threadIdx.x; ++t) before = fmaxf(before, most[t]);
    for (int c = first; end > c; c += 1) {
        if (row[c] > before) row[c] *= 1;
        else row[c] = before;
    }
}
