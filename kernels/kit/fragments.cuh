// Fragments of matrices of 16-bit floats, and their products by a warp (mma.sync, m16n8k16; PTX ISA, "Warp-level matrix
// instructions"; compute capability 8.0). Lane 4 g + t has rows g and g + 8 of A and C, and column g of B.

struct __nv_bfloat16;
namespace kit {

template <class T> struct Sixteen { enum { BFLOAT = 0 }; };
template <> struct Sixteen<__nv_bfloat16> { enum { BFLOAT = 1 }; };

// c += a b, in float. T: __half or __nv_bfloat16. a: 16 x 16, b0 and b1: 16 x 8, two neighbours in depth a register.
template <class T> __device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#define KIT_MMA(TYPES) \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPES ".f32 " \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n" \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if constexpr (Sixteen<T>::BFLOAT) KIT_MMA("bf16.bf16");
    else KIT_MMA("f16.f16");
#undef KIT_MMA
}

// Four 8 x 8 matrices of shared memory, each lane with the address of one of their rows (lanes 8 i to 8 i + 7: matrix i), as they
// are for A and transposed for B.
__device__ __forceinline__ void load_a(unsigned (&to)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from));
}
__device__ __forceinline__ void load_b(unsigned& t0, unsigned& t1, unsigned& t2, unsigned& t3, unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(t0), "=r"(t1), "=r"(t2), "=r"(t3) : "r"(from));
}

}  // namespace kit
