// In place of the kit's copies.cuh and fragments.cuh, whose functions are assembly.
#define __CUDA_ARCH__ 800
namespace kit {
inline unsigned shared_address(const void* at) { return __cvta_generic_to_shared(at); }
template <int BYTES> void copy_later(unsigned to, const void* from, bool valid) {
    if (valid) memcpy(shim::dynamic + to, from, BYTES); else memset(shim::dynamic + to, 0, BYTES);
}
inline void close_group() {}
template <int LEFT> void wait_groups() {}
template <int N> void read_own(unsigned (&to)[N], unsigned from) { memcpy(to, shim::dynamic + from, sizeof(to)); }
inline void write_own(unsigned to, unsigned short value) { memcpy(shim::dynamic + to, &value, 2); }
template <class T> float half_of(unsigned both, int which) {
    both >>= 16 * which;
    T x;
    memcpy(&x, &both, 2);
    return (float)x;
}
// As PTX describes the fragments of m16n8k16: what each lane has of both factors, exchanged.
template <class T> void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1}, me = threadIdx.x % 32;
    unsigned all[32][6];
    for (unsigned mask = 0; mask < 32; ++mask)
        for (int i = 0; i < 6; ++i) all[me ^ mask][i] = (unsigned)__shfl_xor_sync(~0u, (double)mine[i], mask);
    for (int e = 0; e < 4; ++e)
        for (unsigned depth = 0; depth < 16; ++depth) {
            const unsigned left = me / 4 * 4 + depth % 8 / 2, right = (me % 4 * 2 + e % 2) * 4 + depth % 8 / 2;
            const int half = depth / 8, which = depth % 2;
            c[e] += half_of<T>(all[left][e / 2 + half * 2], which) * half_of<T>(all[right][4 + half], which);
        }
}
}
