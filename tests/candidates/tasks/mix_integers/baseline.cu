extern "C" __global__ void mix_integers(const int* a, const int* b, int* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = (a[i] ^ (a[i] >> 1)) ^ (b[i] & 15);
}
