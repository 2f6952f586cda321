extern "C" __global__ void add(int* a, int n, float by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) a[i] += (int)by;
}
