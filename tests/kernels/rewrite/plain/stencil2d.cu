__global__ void stencil2d(const float* in, float* out, int h, int w) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= w || y >= h) return;
    float sum = in[y * w + x];
    if (x > 0) sum += in[y * w + x - 1];
    if (x < w - 1) sum += in[y * w + x + 1];
    if (y > 0) sum += in[(y - 1) * w + x];
    if (y < h - 1) sum += in[(y + 1) * w + x];
    out[y * w + x] = 0.2f * sum;
}
