#include <cub/cub.cuh>
template <int B> __global__ void k(const float* x, float* y, int n) {
    typedef cub::BlockLoad<float, B, 4> Load;
    typedef cub::BlockReduce<float, B> Reduce;
    __shared__ union { typename Load::TempStorage load; typename Reduce::TempStorage reduce; } place;
    float of[4], most = -std::numeric_limits<float>::max();
    for (int i = 0; i < n; i += 4 * B) {
        Load(place.load).Load(x + blockIdx.x * n + i, of, n - i, most);
        for (int j = 0; j < 4; ++j) most = fmaxf(most, of[j]);
        __syncthreads();
    }
    most = Reduce(place.reduce).Reduce(most, cub::Max());
    if (threadIdx.x == 0) y[blockIdx.x] = most;
}
void run(const float* x, float* y, int rows, int n) { k<128> << <rows, 128>> > (x, y, n); }
