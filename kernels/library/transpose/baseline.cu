// A thread for each element; neighbouring threads read neighbouring columns, and write far apart.

extern "C" __global__ void transpose(const T* __restrict__ x, T* __restrict__ out, int n, int d) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < n && col < d) out[(long long)col * n + row] = x[(long long)row * d + col];
}
