__kernel void scale(__global const float* x, __global float* out, float factor, int n) { int at = get_global_id(0) * ITEMS; for (int k = at; k < at + ITEMS; ++k) if (k < n) out[k] = factor * x[k]; }
