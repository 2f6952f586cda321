__global__ void softmax(const float* x, float* y, int n) {
    __shared__ float part[256];
    const float* row = x + blockIdx.x * n;
    int tid = threadIdx.x;
    float most = -3.4e38f;
    for (int i = tid; i < n; i += blockDim.x) most = fmaxf(most, row[i]);
    part[tid] = most;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (tid < s) part[tid] = fmaxf(part[tid], part[tid + s]);
        __syncthreads();
    }
    most = part[0];
    __syncthreads();
    float sum = 0.0f;
    for (int i = tid; i < n; i += blockDim.x) sum += expf(row[i] - most);
    part[tid] = sum;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (tid < s) part[tid] += part[tid + s];
        __syncthreads();
    }
    for (int i = tid; i < n; i += blockDim.x) y[blockIdx.x * n + i] = expf(row[i] - most) / part[0];
}
