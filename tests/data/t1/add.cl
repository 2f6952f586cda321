__kernel void add(__global float *c, __global const float *a, __global const float *b, int n)
{
    const int first = (get_group_id(0) * block_size_x + get_local_id(0)) * work;
    for (int i = first; i < first + work && i < n; i++) c[i] = a[i] + b[i];
}
