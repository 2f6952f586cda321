__kernel void scale(__global const float* x, __global float* out, float factor, int n) { int i = get_global_id(0); if (i < n) out[i] = factor * x[i]; }
