// A row belongs to BLOCK_X threads, BLOCK_Y rows to a block. A thread holds ITEMS vectors of its row until the row's largest
// magnitude is known, so that they are read once; what a longer row has beyond that is read again.

using Address = unsigned long long;
enum {
    STEP = BLOCK_X * VEC,
    WARPS = BLOCK_X / 32,
    WALKS = GRID_CAP > 0,  // a block goes on to further rows
};

// Magnitudes of floats are in the order of their bits.
struct Partials { unsigned int most[WALKS ? 2 : 1][BLOCK_Y][WARPS]; };

__device__ __forceinline__ unsigned int most_of_warp(unsigned int x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, x);
#else
    for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
#endif
}

// Of the BLOCK_X threads of a row, for all of them. Rows after another take turns with two memories, so that one barrier
// each is enough: whoever writes to one again has passed the barrier behind its last reading.
__device__ __forceinline__ unsigned int most_of_row(unsigned int x, Partials& partials, int round) {
    x = most_of_warp(x);
    if (BLOCK_X > 32) {
        unsigned int* mine = partials.most[WALKS ? round & 1 : 0][threadIdx.y];
        if (threadIdx.x % 32 == 0) mine[threadIdx.x / 32] = x;
        __syncthreads();
        x = most_of_warp(mine[threadIdx.x % WARPS]);
    }
    return x;
}

template <int V> __device__ __forceinline__ unsigned int magnitude(const Pack<V>& x) {
    float most = 0.0f;
#pragma unroll
    for (int k = 0; k < V; ++k) most = fmaxf(most, fabsf(to_float(x.value[k])));
    return __float_as_uint(most);
}

template <int V> __device__ __forceinline__ void put(unsigned char* to, const Pack<V>& x, float inverse) {
    alignas(V) unsigned int words[V / 4];
#pragma unroll
    for (int k = 0; k < V; k += 4)
        words[k / 4] = rounded(to_float(x.value[k]) * inverse, to_float(x.value[k + 1]) * inverse,
                               to_float(x.value[k + 2]) * inverse, to_float(x.value[k + 3]) * inverse);
    using Piece = typename Raw<V>::type;
#if CACHE == 0
    *reinterpret_cast<Piece*>(to) = *reinterpret_cast<const Piece*>(words);
#else
    __stcs(reinterpret_cast<Piece*>(to), *reinterpret_cast<const Piece*>(words));
#endif
}

// By what a row is multiplied. Its first thread leaves the scale.
__device__ __forceinline__ float inverse_of(unsigned int magnitude, float largest, float* scales, long long row, int n) {
    const float most = fmaxf(__uint_as_float(magnitude), 1e-10f);
    if (threadIdx.x == 0 && row < n) scales[row] = most / largest;
    return largest / most;
}

// Rows that all start and end on a vector.
__device__ __forceinline__ void rows(const T* __restrict__ x, unsigned char* __restrict__ q, float* __restrict__ scales,
                                     float largest, int n, int d, Partials& partials) {
    const int first = threadIdx.x * VEC;
    long long row = (long long)blockIdx.x * BLOCK_Y + threadIdx.y;
    int round = 0;
    do {
        // Threads beyond the last row have no columns, but take part in the barriers.
        const int end = row < n ? d : 0;
        const T* from = x + row * d;
        unsigned char* to = q + row * d;

        Pack<VEC> held[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (first + i * STEP < end) held[i] = load<VEC>(from + first + i * STEP);
        unsigned int most = 0;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (first + i * STEP < end) most = max(most, magnitude<VEC>(held[i]));
        for (int col = first + ITEMS * STEP; col < end; col += STEP)
            most = max(most, magnitude<VEC>(load<VEC>(from + col)));

        const float inverse = inverse_of(most_of_row(most, partials, round), largest, scales, row, n);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (first + i * STEP < end) put<VEC>(to + first + i * STEP, held[i], inverse);
        for (int col = first + ITEMS * STEP; col < end; col += STEP) put<VEC>(to + col, load<VEC>(from + col), inverse);
        ++round;
        row += (long long)gridDim.x * BLOCK_Y;
    } while (WALKS && row - threadIdx.y < n);  // the same answer in every thread of the block
}

// Rows that begin or end between vectors hold nothing and are read twice: the elements up to the first vector, vectors, and
// the elements behind the last.
__device__ __forceinline__ void unaligned_rows(const T* __restrict__ x, unsigned char* __restrict__ q,
                                               float* __restrict__ scales, float largest, int n, int d,
                                               Partials& partials) {
    enum { V = 4 };
    // Whether both arrays' rows begin at the same place between two vectors; if not, all is taken element by element.
    const bool alike = (reinterpret_cast<Address>(x) / sizeof(T) - reinterpret_cast<Address>(q)) % V == 0;
    long long row = (long long)blockIdx.x * BLOCK_Y + threadIdx.y;
    int round = 0;
    do {
        const int end = row < n ? d : 0;
        const T* from = x + row * d;
        unsigned char* to = q + row * d;
        const int head = alike ? min(end, elements_to_vector<V>(from)) : end;
        const int last = head + (end - head) / V * V, edges = head + end - last;

        unsigned int most = 0;
#pragma unroll 4
        for (int col = head + threadIdx.x * V; col < last; col += BLOCK_X * V)
            most = max(most, magnitude<V>(load<V>(from + col)));
#pragma unroll 1
        for (int i = threadIdx.x; i < edges; i += BLOCK_X)
            most = max(most, __float_as_uint(fabsf(to_float(from[i < head ? i : i - head + last]))));

        const float inverse = inverse_of(most_of_row(most, partials, round), largest, scales, row, n);
#pragma unroll 2
        for (int col = head + threadIdx.x * V; col < last; col += BLOCK_X * V)
            put<V>(to + col, load<V>(from + col), inverse);
#pragma unroll 1
        for (int i = threadIdx.x; i < edges; i += BLOCK_X) {
            const int col = i < head ? i : i - head + last;
            to[col] = rounded(to_float(from[col]) * inverse);
        }
        ++round;
        row += (long long)gridDim.x * BLOCK_Y;
    } while (WALKS && row - threadIdx.y < n);
}

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y, 1)
quantize_per_token(const T* __restrict__ x, Q* __restrict__ q, float* __restrict__ scales, float largest, int n, int d) {
    __shared__ Partials partials;
    unsigned char* bytes = reinterpret_cast<unsigned char*>(q);
    // The same answer in every thread.
    const bool aligned = reinterpret_cast<Address>(x) % Pack<VEC>::PIECE == 0 && reinterpret_cast<Address>(q) % VEC == 0;
    if (d % VEC == 0 && aligned)
        rows(x, bytes, scales, largest, n, d, partials);
    else
        unaligned_rows(x, bytes, scales, largest, n, d, partials);
}
