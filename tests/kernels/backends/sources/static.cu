extern "C" __global__ void other(int* a) {
    __shared__ int big[4000];
    big[threadIdx.x] = *a;
    __syncthreads();
    a[1] = big[threadIdx.x ^ 1];
}
extern "C" __global__ void shared(int* a) {
    __shared__ int x[256];
    x[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    a[threadIdx.x] = x[255 - threadIdx.x];
}
