#define LOOP(i, n) for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += blockDim.x * gridDim.x)

extern "C" __global__ void k(const float* x, float* y, int a, int b, int c, int d) {
    LOOP(i, a * b * c * d) {
        const int k = i % d, row = i / d % (b * c), n = i / d / b / c;
        y[(n * d + k) * (b * c) + row] = x[i] - k;
    }
}
