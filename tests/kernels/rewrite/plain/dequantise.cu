__global__ void dequantise(const signed char* q, const float* scale, float* out, int n, int group) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = (float)q[i] * scale[i / group];
}
