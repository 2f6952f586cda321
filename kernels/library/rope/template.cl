// GROUP_X work-items lie along a head; each keeps its token's cosines and sines for HEADS heads. GROUP_Y such sets of heads
// make a work-group. OpenCL's vector loads need no alignment beyond an element's, so every head takes vectors, and its last
// few pairs go one by one.

__kernel __attribute__((reqd_work_group_size(GROUP_X, GROUP_Y, 1)))
void rope(__global const long* restrict positions, __global T* restrict query, __global T* restrict key,
          __global const float* restrict table, int n, int h, int k, int pairs) {
    const size_t set = get_group_id(0) * (size_t)GROUP_Y + get_local_id(1);
    const int sets = (h + k + HEADS - 1) / HEADS;
    const size_t token = set / sets;
    if (token >= n) return;
    const int first_head = set % sets * HEADS, last_head = min(first_head + HEADS, h + k);
    __global const float* cosines = table + positions[token] * 2 * pairs;
    __global const float* sines = cosines + pairs;
    __global T* of_query = query + token * h * 2 * pairs;
    __global T* of_key = key + token * k * 2 * pairs;

    const int whole = pairs / VEC * VEC;
    for (int i = get_local_id(0) * VEC; i < whole; i += GROUP_X * VEC) {
        const FLOATS cosine = VLOAD(0, cosines + i), sine = VLOAD(0, sines + i);
        for (int head = first_head; head < last_head; ++head) {
            __global T* x = (head < h ? of_query + head * 2 * pairs : of_key + (head - h) * 2 * pairs) + i;
            const FLOATS first = loads(x), second = loads(x + pairs);
            stores(x, first * cosine - second * sine);
            stores(x + pairs, second * cosine + first * sine);
        }
    }
    for (int i = whole + get_local_id(0); i < pairs; i += GROUP_X) {
        const float cosine = cosines[i], sine = sines[i];
        for (int head = first_head; head < last_head; ++head) {
            __global T* x = (head < h ? of_query + head * 2 * pairs : of_key + (head - h) * 2 * pairs) + i;
            const float first = load(x), second = load(x + pairs);
            store(x, first * cosine - second * sine);
            store(x + pairs, second * cosine + first * sine);
        }
    }
}
