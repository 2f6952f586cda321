struct Tensor { std::vector<int> shape; };
template <class T> bool operator!=(const Tensor& a, const T& b);
namespace access {
template <int N> __device__ void load(float* to, const float* from);
template <> __device__ void load<4>(float* to, const float* from) { *to = *from; }
}
template <typename T> __global__ void k(const T* x, T* y, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float got;
    if (i < n && x[i] != T(3)) {
        access::load<4>(&got, x + i);
        y[i] = got;
    }
}
