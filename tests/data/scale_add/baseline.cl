// A work-item for each element.
__kernel void scale_add(__global const float* x, __global const float* y, __global float* out, float a, int n) {
    const int i = get_global_id(0);
    if (i < n) out[i] = a * x[i] + y[i];
}
