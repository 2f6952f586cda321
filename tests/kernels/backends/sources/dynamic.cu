extern "C" __global__ void turn(int* a) {
    extern __shared__ int x[];
    x[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    a[threadIdx.x] = x[blockDim.x - 1 - threadIdx.x];
}
