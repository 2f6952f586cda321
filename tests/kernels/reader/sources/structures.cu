struct Size { int rows, cols; };
enum Mode { FAST, EXACT };
struct Other { int rows; };
struct Params { const void* x; float* y; Size size; float gain[2], turn[2][2]; Mode of_the_host; void* rows; };
__device__ float scaled(const Params& p, float v) { return v * p.gain[1] * p.turn[1][0]; }
template <typename T> __global__ void k(const Params p, float shift) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    Other one = {0};
    if (i < p.size.cols + one.rows) p.y[i] = scaled(p, ((const T*)p.x)[i]) + shift;
}
void host(Params p) { k<float><<<(p.size.cols + 127) / 128, 128>>>(p, 1.0f); }
