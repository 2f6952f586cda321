extern "C" __global__ void row_argmax(const float* input, int* place, int n, int d) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n) return;
    float largest = input[(size_t)row * d];
    int at = 0;
    for (int col = 1; col < d; ++col) {
        const float x = input[(size_t)row * d + col];
        if (x > largest) { largest = x; at = col; }
    }
    place[row] = at;
}
