extern "C" __global__ void k(const float* x, float* y, int a, int b, int c, int d) {
    const int k = blockIdx.x * blockDim.x + threadIdx.x, w = threadIdx.y + blockIdx.y * blockDim.y;
    const float* image = x + blockIdx.z * c * d * a;
    if (k < d && w < c * a) y[(blockIdx.z * d + k) * (c * a) + w] += 2 * image[w * d + k];
}
