// Building blocks of the templates that rules make, where threads share data. Each begins with a line `//: NAME` and the
// blocks that it needs; macros are for CUDA C++ and OpenCL C alike.
//: stage
// whole: a type of 64 bits. By all threads of a block, of which each is number `me` of `threads`: ROWS rows of WIDE elements of `array` into `to`, the
// first from `from` on and the next `apart` further, as far as the array's `length` elements go.
#define TUNESMITH_STAGE(whole, to, WIDE, ROWS, array, length, from, apart, me, threads) \
    for (int stage_at = me; stage_at < (WIDE) * (ROWS); stage_at += threads) { \
        const whole stage_from = (from) + stage_at / (WIDE) * (apart) + stage_at % (WIDE); \
        if (stage_from >= 0 && stage_from < (length)) to[stage_at] = (array)[stage_from]; \
    }
