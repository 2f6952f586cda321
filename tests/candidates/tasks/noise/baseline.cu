extern "C" __global__ void noise(const float* input, float* out, int n, unsigned seed) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned x = (unsigned)i * 2654435761u + seed;
    x ^= x >> 15;
    out[i] = input[i] * (float)(x & 1023u);
}
