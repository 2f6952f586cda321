// The fibers, and the grid that runs a block after the other.
#include "shim.hpp"
#include <setjmp.h>
#include <ucontext.h>
#include <vector>
Extent threadIdx, blockIdx, blockDim, gridDim;
namespace shim {
struct Barrier { unsigned int arrived = 0, turn = 0; };
struct Fiber {
    std::vector<char> stack = std::vector<char>(1 << 16);
    ucontext_t start;
    jmp_buf at;
    bool started = false, done = false;
};
static ucontext_t unused;
static jmp_buf scheduler;
static std::vector<Fiber> fibers;
static std::vector<Barrier> groups;
alignas(16) char dynamic[1 << 18];
static Barrier block;
static std::vector<double> slots;
static unsigned int current, threads;
static void (*kernel)(void*);
static void* given;
static void place(unsigned int id) {
    current = id;
    threadIdx = {id % blockDim.x, id / blockDim.x % blockDim.y, id / blockDim.x / blockDim.y};
}
// Unlike swapcontext, these jumps ask the kernel for nothing, which is most of the time of a small launch.
static void yield() { if (!_setjmp(fibers[current].at)) _longjmp(scheduler, 1); }
static void resume(unsigned int id) {
    place(id);
    if (_setjmp(scheduler)) return;
    if (fibers[id].started) _longjmp(fibers[id].at, 1);
    fibers[id].started = true;
    swapcontext(&unused, &fibers[id].start);
}
static void meet(Barrier& barrier, unsigned int count) {
    const unsigned int turn = barrier.turn;
    if (++barrier.arrived == count) { barrier.arrived = 0; ++barrier.turn; } else while (barrier.turn == turn) yield();
}
static void meet_lanes(unsigned int lanes) {
    const unsigned int warp = current / 32, rest = threads - warp * 32;
    const unsigned int there = rest < 32 ? lanes & ((1u << rest) - 1) : lanes;
    meet(groups[warp * 32 + __builtin_ctz(lanes)], __builtin_popcount(there));
}
double exchanged(double value, unsigned int mask, unsigned int lanes) {
    const unsigned int me = current;
    slots[me] = value; meet_lanes(lanes);
    const double other = slots[me ^ mask]; meet_lanes(lanes);
    return other;
}
double shifted(double value, int by, unsigned int lanes) {
    const unsigned int me = current;
    slots[me] = value; meet_lanes(lanes);
    const double other = me % 32 + by < 32u ? slots[me + by] : value; meet_lanes(lanes);
    return other;
}
double of_lane(double value, int lane, unsigned int lanes) {
    const unsigned int me = current;
    slots[me] = value; meet_lanes(lanes);
    const double other = slots[me / 32 * 32 + lane]; meet_lanes(lanes);
    return other;
}
// A thread of each block in turn.
static void body() { for (;;) { kernel(given); fibers[current].done = true; yield(); } }
void run(Extent grid, Extent dims, void (*what)(void*), void* with) {
    gridDim = grid; blockDim = dims; kernel = what; given = with; threads = dims.x * dims.y * dims.z;
    fibers = std::vector<Fiber>(threads);
    for (Fiber& one : fibers) {
        getcontext(&one.start);
        one.start.uc_stack.ss_sp = one.stack.data(); one.start.uc_stack.ss_size = one.stack.size();
        makecontext(&one.start, body, 0);
    }
    for (unsigned int number = 0; number < grid.x * grid.y * grid.z; ++number) {
        blockIdx = {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y};
        slots.assign(threads, 0); groups.assign(threads + 32, Barrier()); block = Barrier();
        for (Fiber& one : fibers) one.done = false;
        for (unsigned int left = threads; left;) {
            left = 0;
            for (unsigned int id = 0; id < threads; ++id)
                if (!fibers[id].done) { resume(id); left += !fibers[id].done; }
        }
    }
}
}
void __syncthreads() { shim::meet(shim::block, shim::threads); }
