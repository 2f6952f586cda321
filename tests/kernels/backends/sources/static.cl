__kernel void other(__global int* a) {
    __local int big[4000];
    big[get_local_id(0)] = a[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    a[1] = big[get_local_id(0) ^ 1];
}
__kernel void shared(__global int* a) {
    __local int x[256];
    int t = get_local_id(0);
    x[t] = a[t];
    barrier(CLK_LOCAL_MEM_FENCE);
    a[t] = x[255 - t];
}
