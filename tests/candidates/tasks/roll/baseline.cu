extern "C" __global__ void roll(const float* x, float* out, int shift, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int from = (i + shift) % n;
    out[i] = x[from < 0 ? from + n : from];
}
