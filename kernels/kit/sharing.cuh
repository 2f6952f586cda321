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
//: slide
// What a thread keeps of `array` while it goes on: HIGH rows of WIDE elements, the first from `from` on and the next `apart`
// further, as far as the array's `length` elements go. All are read at the first step, later only the last row.
#define TUNESMITH_SLIDE(whole, window, WIDE, HIGH, first, array, length, from, apart) \
    _Pragma("unroll") for (int slide_row = 0; slide_row < (HIGH); ++slide_row) { \
        _Pragma("unroll") for (int slide_column = 0; slide_column < (WIDE); ++slide_column) { \
            const whole slide_from = (from) + slide_row * (apart) + slide_column; \
            if (!(first) && slide_row < (HIGH) - 1) window[slide_column][slide_row] = window[slide_column][slide_row + 1]; \
            else if (slide_from >= 0 && slide_from < (length)) window[slide_column][slide_row] = (array)[slide_from]; \
        } \
    }
