extern "C" __global__ void row_sum(const int* input, int* out, int n, int d) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n) return;
    int sum = 0;
    for (int col = 0; col < d; ++col) sum += input[(size_t)row * d + col];
    out[row] = sum;
}
