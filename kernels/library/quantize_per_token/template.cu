// A row belongs to BLOCK_X threads, BLOCK_Y rows to a block. A thread holds ITEMS vectors of its row until the row's largest
// magnitude is known, so that they are read once; what a longer row has beyond that is read again.

#include "kit/reduce.cuh"
#include "kit/rows.cuh"

enum { WALKS = GRID_CAP > 0 };  // a block goes on to further rows

// Magnitudes of floats are in the order of their bits.
struct Partials { unsigned int most[WALKS ? 2 : 1][BLOCK_Y][BLOCK_X / 32]; };

// Numbers of one byte, rounded to nearest even: int8, or float8_e4m3.
#if Q_IS_INT8
// The sum has a last place of one: its lowest byte is x, rounded. |x| is at most a hair above 127, so that nothing needs to
// be clamped.
__device__ __forceinline__ unsigned int rounded(float x) { return __float_as_uint(x + 12582912.0f) & 0xff; }
__device__ __forceinline__ unsigned int rounded(float a, float b, float c, float d) {
    const unsigned int low = __byte_perm(__float_as_uint(a + 12582912.0f), __float_as_uint(b + 12582912.0f), 0x0040);
    const unsigned int high = __byte_perm(__float_as_uint(c + 12582912.0f), __float_as_uint(d + 12582912.0f), 0x0040);
    return __byte_perm(low, high, 0x5410);
}
#else
__device__ __forceinline__ unsigned int rounded(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }
__device__ __forceinline__ unsigned int rounded(float a, float b, float c, float d) {
    const unsigned int low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
    const unsigned int high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
    return low | high << 16;
}
#endif

template <int V> __device__ __forceinline__ unsigned int magnitude(const kit::Vector<T, V>& x) {
    float most = 0.0f;
#pragma unroll
    for (int k = 0; k < V; ++k) most = fmaxf(most, fabsf(float(x.value[k])));
    return __float_as_uint(most);
}

template <int V> __device__ __forceinline__ void put(unsigned char* to, const kit::Vector<T, V>& x, float inverse) {
    kit::Vector<unsigned int, V / 4> words;
#pragma unroll
    for (int k = 0; k < V; k += 4)
        words.value[k / 4] = rounded(float(x.value[k]) * inverse, float(x.value[k + 1]) * inverse,
                                     float(x.value[k + 2]) * inverse, float(x.value[k + 3]) * inverse);
    kit::store<CACHE>(reinterpret_cast<unsigned int*>(to), words);
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
    kit::Columns<BLOCK_X, VEC, ITEMS> columns;
    kit::RowOfBlock<BLOCK_Y, WALKS> at;
    do {
        // Threads beyond the last row have no columns, but take part in the barriers.
        columns.end = at.row < n ? d : 0;
        const T* from = x + at.row * d;
        unsigned char* to = q + at.row * d;
        kit::Vector<T, VEC> held[ITEMS];
        columns.fetch<CACHE>(held, from);
        unsigned int most = 0;
        columns.held([&](int i, int) { most = max(most, magnitude(held[i])); });
        columns.more([&](int col) { most = max(most, magnitude(kit::load<VEC, CACHE>(from + col))); });
        most = kit::fold_row<BLOCK_X>(most, partials.most[WALKS ? at.round & 1 : 0][threadIdx.y], kit::Largest{});
        const float inverse = inverse_of(most, largest, scales, at.row, n);
        columns.held([&](int i, kit::Column col) { put(to + col, held[i], inverse); });
        columns.more([&](int col) { put(to + col, kit::load<VEC, CACHE>(from + col), inverse); });
    } while (at.next(n));
}

// Rows that begin or end between vectors hold nothing and are read twice.
__device__ __forceinline__ void unaligned_rows(const T* __restrict__ x, unsigned char* __restrict__ q,
                                               float* __restrict__ scales, float largest, int n, int d,
                                               Partials& partials) {
    using Address = unsigned long long;
    const bool alike = (reinterpret_cast<Address>(x) / sizeof(T) - reinterpret_cast<Address>(q)) % 4 == 0;
    kit::RowOfBlock<BLOCK_Y, WALKS> at;
    do {
        const T* from = x + at.row * d;
        unsigned char* to = q + at.row * d;
        const kit::Pieces<BLOCK_X, 4> pieces(from, at.row < n ? d : 0, alike);
        unsigned int most = 0;
        pieces.vectors<4>([&](int col) { most = max(most, magnitude(kit::load<4, CACHE>(from + col))); });
        pieces.elements([&](int col) { most = max(most, __float_as_uint(fabsf(float(from[col])))); });
        most = kit::fold_row<BLOCK_X>(most, partials.most[WALKS ? at.round & 1 : 0][threadIdx.y], kit::Largest{});
        const float inverse = inverse_of(most, largest, scales, at.row, n);
        pieces.vectors<2>([&](int col) { put(to + col, kit::load<4, CACHE>(from + col), inverse); });
        pieces.elements([&](int col) { to[col] = rounded(float(from[col]) * inverse); });
    } while (at.next(n));
}

extern "C" __global__ void __launch_bounds__(BLOCK_X * BLOCK_Y, 1)
quantize_per_token(const T* __restrict__ x, Q* __restrict__ q, float* __restrict__ scales, float largest, int n, int d) {
    __shared__ Partials partials;
    unsigned char* bytes = reinterpret_cast<unsigned char*>(q);
    const bool aligned = kit::on_vectors<T, VEC>(x) && kit::on_vectors<unsigned char, VEC>(q);
    if (d % VEC == 0 && aligned)
        rows(x, bytes, scales, largest, n, d, partials);
    else
        unaligned_rows(x, bytes, scales, largest, n, d, partials);
}
