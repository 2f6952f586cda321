// Building blocks of the templates that rules make of OpenCL C. Each begins with a line `//: NAME`.
//: vectors
// `count` neighbouring elements of an array, which move as one access where they are `whole`, else as far as they are below
// `limit`.
#define TUNESMITH_ELEMENTS(type, count, name) \
    struct name##_type { type at[count]; } __attribute__((aligned(sizeof(type) * (count)))); \
    struct name##_type name
#define TUNESMITH_FETCH(count, name, from, first, limit, whole) \
    if (whole) name = *(const __global struct name##_type*)((from) + (first)); \
    else for (int i_ = 0; i_ < (count); ++i_) if ((long)(first) + i_ < (limit)) name.at[i_] = ((from) + (first))[i_]
#define TUNESMITH_PUT(count, name, to, first, limit, whole) \
    if (whole) *(__global struct name##_type*)((to) + (first)) = name; \
    else for (int i_ = 0; i_ < (count); ++i_) if ((long)(first) + i_ < (limit)) ((to) + (first))[i_] = name.at[i_]
#define TUNESMITH_ALIGNED(count, from) ((size_t)(from) % (sizeof(*(from)) * (count)) == 0)
