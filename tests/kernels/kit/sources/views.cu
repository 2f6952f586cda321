#include "kit/views.cuh"

extern "C" __global__ void k(float* x, float* y, float* z, float* w) {
    const auto body = [](auto a, auto b, auto c, auto i) { c[i] = a[i] + 2.0f * b[i]; };
    kit::over_row<32, 4, 2>(333, false, body, kit::In<float, 4>(x), kit::In<float, 4>(x), kit::Out<float, 4>(y));
    kit::over_row<32, 4, 2>(1200, true, body, kit::In<float, 4>(x), kit::In<float, 4>(x), kit::Out<float, 4>(z));
    const kit::Elements<float> shifted(x + 1);
    const kit::Pieces<32, 4> pieces(x + 3, 200, true);
    kit::each<2>(pieces, [&](auto a, auto w, auto i) { w[i] = w[i] * a[i] + shifted[i]; },
                 kit::In<float, 4>(x + 3), kit::InOut<float, 4>(w + 3));
    alignas(16) __shared__ float kept[400];
    kit::Columns<32, 4, 0> columns(400);
    columns.keep<kit::PLAIN>(kept, x);
    columns.more([&](int col) { kit::store(w + 400 + col, kit::load<4>(kept + col)); });
}
