// What goes wrong is TROUBLE: 1 never ends, 2 kills the process, 3 does not compile, 4 a wrong element, 5 writes past
// the end, 6 leaves an element unwritten, 7 changes an input, 8 takes ever longer to compile.
#if TROUBLE == 3
#error this configuration is not meant to compile
#endif

#if TROUBLE == 8
#define TWICE(x) x x
#define M4(x) TWICE(TWICE(TWICE(TWICE(x))))
#define LONG(x) TWICE(TWICE(M4(M4(M4(x)))))
#endif

__kernel void scale_add(__global const float* x, __global const float* y, __global float* out, float a, int n) {
    const int i = get_global_id(0);
    if (i >= n) return;
#if TROUBLE == 1
    // One work-item is enough, and leaves the other cores to what is tested beside it.
    volatile __global int* spin = (volatile __global int*)out;
    if (i == 0) *spin = 1;
    while (i == 0 && *spin) *spin = 1;
#elif TROUBLE == 2
    *(__global int*)(ulong)8 = 1;
#elif TROUBLE == 5
    if (i == n - 1) out[n] = 0.0f;
#elif TROUBLE == 7
    if (i == 0) ((__global float*)x)[0] += 1.0f;
#elif TROUBLE == 8
    float z = x[i];
    LONG(z = sin(z) + cos(z * y[i]);)
    out[i] = z;
#endif
    float result = a * x[i] + y[i];
#if TROUBLE == 4
    if (i == 77) result += 1.0f;
#elif TROUBLE == 6
    if (i == n - 1) return;
#endif
    out[i] = result;
}
