// Each block counts into shared memory and then adds its counts to the others'. Launched with 256 threads a block.

extern "C" __global__ void histogram(const unsigned char* __restrict__ data, int* __restrict__ counts, int n) {
    __shared__ int mine[256];
    mine[threadIdx.x] = 0;
    __syncthreads();
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) atomicAdd(&mine[data[i]], 1);
    __syncthreads();
    if (mine[threadIdx.x] > 0) atomicAdd(&counts[threadIdx.x], mine[threadIdx.x]);
}
