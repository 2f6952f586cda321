// A thread for each element of the result; neighbouring threads take neighbouring pixels, row after row.

__device__ float to_float(float x) { return x; }
#if T_IS_FLOAT16
__device__ float to_float(__half x) { return __half2float(x); }
#endif

extern "C" __global__ void conv3x3(const T* __restrict__ x, const T* __restrict__ filters, const T* __restrict__ bias,
                                   T* __restrict__ out, int n, int c, int o, int h, int w) {
    const int pixel = blockIdx.x * blockDim.x + threadIdx.x;
    const int to = blockIdx.y, image = blockIdx.z;
    if (pixel >= h * w) return;
    const int row = pixel / w, col = pixel % w;
    float sum = to_float(bias[to]);
    for (int from = 0; from < c; ++from) {
        const T* plane = x + ((long long)image * c + from) * h * w;
        const T* filter = filters + ((long long)to * c + from) * 9;
        for (int i = 0; i < 3; ++i)
            for (int j = 0; j < 3; ++j) {
                const int y = row + i - 1, z = col + j - 1;
                if (y >= 0 && y < h && z >= 0 && z < w) sum += to_float(filter[i * 3 + j]) * to_float(plane[y * w + z]);
            }
    }
    out[((long long)image * o + to) * h * w + pixel] = T(sum);
}
