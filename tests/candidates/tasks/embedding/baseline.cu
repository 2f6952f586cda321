extern "C" __global__ void embedding(const int* ids, const float* table, float* out, int n, int v, int d) {
    const size_t token = blockIdx.x;
    const float* from = table + (size_t)ids[token] * d;
    for (int col = threadIdx.x; col < d; col += blockDim.x) out[token * d + col] = from[col];
}
