__global__ void scatter(const float* x, const int* index, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(out + index[i], x[i]);
}
