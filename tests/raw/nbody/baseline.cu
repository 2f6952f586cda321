// A thread for each body, which goes over all of them.

extern "C" __global__ void nbody(const float* __restrict__ positions, const float* __restrict__ velocities,
                                 const float* __restrict__ masses, float* __restrict__ new_positions,
                                 float* __restrict__ new_velocities, float gravity, float softening, float step, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float x = positions[3 * i], y = positions[3 * i + 1], z = positions[3 * i + 2];
    float ax = 0.0f, ay = 0.0f, az = 0.0f;
    for (int j = 0; j < n; ++j) {
        const float dx = positions[3 * j] - x, dy = positions[3 * j + 1] - y, dz = positions[3 * j + 2] - z;
        const float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + softening * softening);
        const float weight = masses[j] * inverse * inverse * inverse;
        ax += weight * dx;
        ay += weight * dy;
        az += weight * dz;
    }
    const float vx = velocities[3 * i] + step * gravity * ax;
    const float vy = velocities[3 * i + 1] + step * gravity * ay;
    const float vz = velocities[3 * i + 2] + step * gravity * az;
    new_velocities[3 * i] = vx;
    new_velocities[3 * i + 1] = vy;
    new_velocities[3 * i + 2] = vz;
    new_positions[3 * i] = x + step * vx;
    new_positions[3 * i + 1] = y + step * vy;
    new_positions[3 * i + 2] = z + step * vz;
}
