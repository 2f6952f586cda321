#include "kit/rows.cuh"

extern "C" __global__ void k(__half* x, __half* y, int* seen) {
    kit::Columns<16, 4, 2> columns;
    kit::RowOfBlock<2, true> at;
    do {
        columns.end = at.row < 5 ? 200 : 0;
        kit::Vector<__half, 4> held[2];
        columns.fetch<kit::STREAMED>(held, x + at.row * 200);
        columns.each_held([&](int i, int k) { held[i].value[k] = __half(2.0f * float(held[i].value[k])); });
        columns.held([&](int i, kit::Column col) { kit::store<kit::KEPT>(y + at.row * 200 + int(col), held[i]); });
        columns.ahead<kit::PLAIN>(x + at.row * 200, [&](int col, auto v) { kit::store(y + at.row * 200 + col, v); });
        columns.more([&](int col) { for (int k = 0; k < 4; ++k) ++seen[at.row * 200 + col + k]; });
    } while (at.next(5));
}
