extern "C" __global__ void k(const float* x, float* y, int a, int b, int c, int d) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < a * b * c * d) {
        int i1 = (i / (b * c * d)) % a, i2 = (i / (c * d)) % b, i3 = (i / d) % c, i4 = i % d;
        int to = i4 * (c * a * b) + i3 * (a * b) + i1 * b + i2;
        y[to] = x[i];
    }
}
