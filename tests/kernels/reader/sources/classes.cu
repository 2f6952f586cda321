template <class T> struct Pointer { T* data; __device__ Pointer() : data(0) {} };
template <class T> struct Rows : Pointer<T> {
    int rows, cols;
    __device__ Rows() : rows(0), cols(0) {}
    __device__ T& at(int i) const { return this->data[i]; }
};
template <bool twice, class T> __global__ void k(const Rows<float> x, Rows<int> z, T y, float3 by) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < x.cols) y[i].x = x.at(i) * by.z + z.at(i);
}
void host(Rows<float> x, Rows<int> z, float4* y) { k<true><<<x.cols / 64, 64>>>(x, z, y, float3()); }
