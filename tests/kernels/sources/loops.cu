extern "C" __global__ void k(const float* x, float* y, int n) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 32) {
        for (int j = 0; j < i; ++j)
            sum += sinf(x[i]) / x[j];
        sum += x[i];
    }
    y[threadIdx.x] = sum;
}
