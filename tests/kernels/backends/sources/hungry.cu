// More live values than the compiler may keep in registers.
extern "C" __global__ void hungry(float* p, int n) {
    float v[100];
    #pragma unroll
    for (int i = 0; i < 100; ++i) v[i] = p[i * 1024 + threadIdx.x];
    for (int k = 0; k < n; ++k) {
        #pragma unroll
        for (int i = 0; i < 100; ++i) v[i] = v[i] * v[(i + 7) % 100] + p[k];
    }
    float sum = 0;
    #pragma unroll
    for (int i = 0; i < 100; ++i) sum += v[i];
    p[threadIdx.x] = sum;
}
