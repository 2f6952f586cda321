kernel void softmax(global const float* input, global float* out, int n, int d) {
    local float sums[64];
    const int me = get_local_id(0), row = get_group_id(0);
    float sum = 0.0f;
    for (int col = me; col < d; col += 64) sum += exp(input[row * d + col]);
    sums[me] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (me == 0) for (int i = 1; i < 64; ++i) sums[0] += sums[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int col = me; col < d; col += 64) out[row * d + col] = exp(input[row * d + col]) / sums[0];
}
