__kernel void add(__global int* a, int n, float by) {
    int i = get_global_id(0);
    if (i < n) a[i] += (int)by;
}
