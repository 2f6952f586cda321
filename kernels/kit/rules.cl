// Building blocks of the templates that rules make of OpenCL C. Each begins with a line `//: NAME`.
//: vectors
// `count` records of an array, so many `apart`, as far as they are below `limit`: as one access where they are `whole`. size: the
// elements of a record.
#define TUNESMITH_ELEMENTS(type, count, name) \
    struct name##_type { type at[count]; } __attribute__((aligned(sizeof(type) * (count)))); \
    struct name##_type name
#define TUNESMITH_FETCH(count, size, name, from, first, apart, limit, whole) \
    if (whole) name = *(const __global struct name##_type*)((from) + (first) * (size)); \
    else for (int i_ = 0; i_ < (count) * (size); ++i_) \
        if ((long)(first) + i_ / (size) * (apart) < (limit)) \
            name.at[i_] = (from)[((first) + i_ / (size) * (apart)) * (size) + i_ % (size)]
#define TUNESMITH_PUT(count, size, name, to, first, apart, limit, whole) \
    if (whole) *(__global struct name##_type*)((to) + (first) * (size)) = name; \
    else for (int i_ = 0; i_ < (count) * (size); ++i_) \
        if ((long)(first) + i_ / (size) * (apart) < (limit)) \
            (to)[((first) + i_ / (size) * (apart)) * (size) + i_ % (size)] = name.at[i_]
#define TUNESMITH_ALIGNED(count, from) ((size_t)(from) % (sizeof(*(from)) * (count)) == 0)
//: permuted
// A tile of side x side elements in local memory, whose rows have an element more, so that a column lies in different banks.
#define TUNESMITH_TILE(type, name, side) __local type name[side][(side) + 1]
#define TUNESMITH_MEET barrier(CLK_LOCAL_MEM_FENCE)
#define TUNESMITH_EACH_TILE(number, count) \
    for (unsigned int number = get_group_id(0); number < (count); number += get_num_groups(0))
// Goes over the places of a tile by groups of side x rows work items, which are neighbours along `inner`.
#define TUNESMITH_OVER_TILE(side, rows, inner, outer) \
    for (long inner = first_##inner + get_local_id(0), outer = first_##outer + get_local_id(1), end_of_tile = outer + (side); \
         outer < end_of_tile; outer += (rows))
//: slide
// What a thread keeps of `array` while it goes on: HIGH rows of WIDE elements, the first from `from` on and the next `apart`
// further, as far as the array's `length` elements go. All are read at the first step, later only the last row.
#define TUNESMITH_SLIDE(window, WIDE, HIGH, first, array, length, from, apart) \
    _Pragma("unroll") for (int slide_row = 0; slide_row < (HIGH); ++slide_row) { \
        _Pragma("unroll") for (int slide_column = 0; slide_column < (WIDE); ++slide_column) { \
            const long slide_from = (from) + slide_row * (apart) + slide_column; \
            if (!(first) && slide_row < (HIGH) - 1) window[slide_column][slide_row] = window[slide_column][slide_row + 1]; \
            else if (slide_from >= 0 && slide_from < (length)) window[slide_column][slide_row] = (array)[slide_from]; \
        } \
    }
