// What the production opponents share: vectors of 16 bytes, and whether a pointer is a place for one.

enum { WIDTH = 16 / sizeof(T) };  // a constant would be a variable of the module
struct alignas(16) Vector { T at[WIDTH]; };

__device__ __forceinline__ bool aligned(const void* pointer) {
    return reinterpret_cast<unsigned long long>(pointer) % 16 == 0;
}
