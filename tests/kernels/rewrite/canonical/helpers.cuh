__device__ int at(int row, int column, int width) { return row * width + column; }
__device__ float loaded(const float* from) { return *from; }
__device__ int halved(int of) { return of / 2; }
template <class V> __device__ V of(const V* from, unsigned int i) { return from[i]; }
