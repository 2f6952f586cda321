__kernel void row_argmax(__global const float* input, __global int* place, int n, int d) {
    const int row = get_global_id(0);
    if (row >= n) return;
    float largest = input[(size_t)row * d];
    int at = 0;
    for (int col = 1; col < d; ++col) {
        const float x = input[(size_t)row * d + col];
        if (x > largest) { largest = x; at = col; }
    }
    place[row] = at;
}
