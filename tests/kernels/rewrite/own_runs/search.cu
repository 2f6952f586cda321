// A row for each thread, of which it asks for a place.
extern "C" __global__ void k(const signed char* x, int* y, int n) {
    __shared__ int wanted;
    if (threadIdx.x == 0) wanted = 7;
    __syncthreads();
    const int thread = blockIdx.x * 64 + threadIdx.x;
    int at = -1;
    for (int k = 0; k < n; ++k) {
        if (x[(blockIdx.y * 128 + thread) * n + k] == wanted && at < 0) at = k;
    }
    y[blockIdx.y * 128 + thread] = at;
}
