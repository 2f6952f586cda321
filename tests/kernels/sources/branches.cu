extern "C" __global__ void branches(float* x, int n) {
    const int i = threadIdx.x;
    if (n == 777) {
        for (int at = 0; at < n; ++at) x[at] = sqrtf(x[at] + x[2 * at]);
        __syncthreads();
    }
    x[i] += 1.0f;
}
