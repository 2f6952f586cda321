// for (;;) in a comment
#define STEP 64
#define TWICE(x) ((x) + (x))
#if STEP > 8
#endif
__kernel void total(__global const float* in, __global float* out, int n, int d) {
    __local float partial[STEP];
    float sum = 0.5f;
    for (int i = 0; i < d; ++i) sum += TWICE(load(in + row * d + i));
    barrier(CLK_LOCAL_MEM_FENCE);
    if (row >= n) return;
    out[row] = fmax(sum, partial[row & 0xff]);
}
