// Rarer functions, lane by lane through libm, for float and double.
#pragma once
#include "math.h"

namespace weft {

#define WEFT_LIBM1(NAME)                                                                     \
  WEFT_TV INLINE Vec<T, L, P> NAME(Vec<T, L, P> a) {                                         \
    if constexpr (same<T, float>) return map([](float x) { return __builtin_##NAME##f(x); }, a); \
    else return map([](double x) { return __builtin_##NAME(x); }, a);                        \
  }
#define WEFT_LIBM2(NAME)                                                                     \
  WEFT_TV INLINE Vec<T, L, P> NAME(Vec<T, L, P> a, Vec<T, L, P> b) {                         \
    if constexpr (same<T, float>) return map([](float x, float y) { return __builtin_##NAME##f(x, y); }, a, b); \
    else return map([](double x, double y) { return __builtin_##NAME(x, y); }, a, b);        \
  }
WEFT_LIBM1(tan) WEFT_LIBM1(asin) WEFT_LIBM1(acos) WEFT_LIBM1(sinh) WEFT_LIBM1(cosh)
WEFT_LIBM1(asinh) WEFT_LIBM1(acosh) WEFT_LIBM1(atanh) WEFT_LIBM1(erfc) WEFT_LIBM1(lgamma)
WEFT_LIBM2(atan2) WEFT_LIBM2(hypot) WEFT_LIBM2(nextafter)

}  // namespace weft
