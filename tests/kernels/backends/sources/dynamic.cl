__kernel void turn(__global int* a, __local int* x) {
    int t = get_local_id(0);
    x[t] = a[t];
    barrier(CLK_LOCAL_MEM_FENCE);
    a[t] = x[get_local_size(0) - 1 - t];
}
