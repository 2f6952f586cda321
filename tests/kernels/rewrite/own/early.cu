extern "C" __global__ void early(const float* x, float* y, float a, int n) {
    const unsigned int tid = threadIdx.x;
    const int i = tid + (int)blockDim.x * blockIdx.x;
    if (i >= n) return;
    float sum = 0;
    for (int k = 0; k < n % 7; ++k) { if (x[i] < -1.0f) return; sum += x[i] / (k + 1); }
    y[i] = sum * a;
}
