// Functions of libraries.
//
// Whole vectors go through SLEEF, which is part of torch and gives eager's results, where torch exports it
// (WEFT_SLEEF, see cpp_build.py); other vectors and scalars go lane by lane through libm.
#pragma once
#include "math.h"

namespace weft {

#ifdef WEFT_SLEEF
template <class T, int L> constexpr bool in_sleef = sizeof(T) * L == 64 || sizeof(T) * L == 32;
#define WEFT_SLEEF_WIDTHS(SIGNATURE, NAME, ULP)          \
  SIGNATURE(NAME, double, 8, Sleef_##NAME##d8##ULP)      \
  SIGNATURE(NAME, float, 16, Sleef_##NAME##f16##ULP)     \
  SIGNATURE(NAME, double, 4, Sleef_##NAME##d4##ULP)      \
  SIGNATURE(NAME, float, 8, Sleef_##NAME##f8##ULP)
#else
template <class T, int L> constexpr bool in_sleef = false;
#define WEFT_SLEEF_WIDTHS(SIGNATURE, NAME, ULP)
#endif
#define WEFT_SLEEF1(NAME, T, L, SYMBOL)       \
  extern "C" Part<T, L> SYMBOL(Part<T, L>);   \
  INLINE Part<T, L> sleef_##NAME(Part<T, L> x) { return SYMBOL(x); }
#define WEFT_SLEEF2(NAME, T, L, SYMBOL)                   \
  extern "C" Part<T, L> SYMBOL(Part<T, L>, Part<T, L>);   \
  INLINE Part<T, L> sleef_##NAME(Part<T, L> x, Part<T, L> y) { return SYMBOL(x, y); }

// library_NAME: of one argument, and of two.
#define WEFT_LIBRARY1(NAME, ULP)                                                         \
  WEFT_SLEEF_WIDTHS(WEFT_SLEEF1, NAME, ULP)                                              \
  WEFT_TV INLINE Vec<T, L, P> library_##NAME(Vec<T, L, P> a) {                           \
    if constexpr (in_sleef<T, L>) {                                                      \
      PARTS a.p[k] = sleef_##NAME(a.p[k]);                                               \
      return a;                                                                          \
    } else if constexpr (same<T, float>) return map([](float x) { return __builtin_##NAME##f(x); }, a); \
    else return map([](double x) { return __builtin_##NAME(x); }, a);                    \
  }
#define WEFT_LIBRARY2(NAME, ULP)                                                         \
  WEFT_SLEEF_WIDTHS(WEFT_SLEEF2, NAME, ULP)                                              \
  WEFT_TV INLINE Vec<T, L, P> library_##NAME(Vec<T, L, P> a, Vec<T, L, P> b) {           \
    if constexpr (in_sleef<T, L>) {                                                      \
      PARTS a.p[k] = sleef_##NAME(a.p[k], b.p[k]);                                       \
      return a;                                                                          \
    } else if constexpr (same<T, float>) return map([](float x, float y) { return __builtin_##NAME##f(x, y); }, a, b); \
    else return map([](double x, double y) { return __builtin_##NAME(x, y); }, a, b);    \
  }

// What has no other form.
#define WEFT_OF_BOTH1(NAME, ULP) \
  WEFT_LIBRARY1(NAME, ULP)       \
  WEFT_TV INLINE Vec<T, L, P> NAME(Vec<T, L, P> a) { return library_##NAME(a); }
#define WEFT_OF_BOTH2(NAME, ULP) \
  WEFT_LIBRARY2(NAME, ULP)       \
  WEFT_TV INLINE Vec<T, L, P> NAME(Vec<T, L, P> a, Vec<T, L, P> b) { return library_##NAME(a, b); }
WEFT_OF_BOTH1(atanh, _u10)
WEFT_OF_BOTH1(lgamma, _u10) WEFT_OF_BOTH2(atan2, _u10) WEFT_OF_BOTH2(hypot, _u05)
WEFT_OF_BOTH2(nextafter, )

// SLEEF's hyperbolic functions overflow early: sinh and cosh near the greatest result, their inverses at its square root.
WEFT_LIBRARY1(sinh, _u10) WEFT_LIBRARY1(cosh, _u10) WEFT_LIBRARY1(asinh, _u10) WEFT_LIBRARY1(acosh, _u10)
WEFT_TV INLINE Vec<bool, L, P> is_beyond(Vec<T, L, P> a, Lane<T> limit) {
  if constexpr (in_sleef<T, L>) return gt(a, all(a, limit));
  else return splat_lane<L, P, bool>(0);
}
WEFT_TV INLINE Vec<T, L, P> half_exp(Vec<T, L, P> a) {
  auto root = exp(a * T(0.5));
  return (root * T(0.5)) * root;
}
WEFT_TV INLINE Vec<T, L, P> sinh(Vec<T, L, P> x) {
  auto a = abs(x), y = library_sinh(x);
  auto large = is_beyond(a, type_of<T>(88.0f, 709.0));
  return any_lane(large) ? where(large, copysign(half_exp(a), x), y) : y;
}
WEFT_TV INLINE Vec<T, L, P> cosh(Vec<T, L, P> x) {
  auto a = abs(x), y = library_cosh(x);
  auto large = is_beyond(a, type_of<T>(88.0f, 709.0));
  return any_lane(large) ? where(large, half_exp(a), y) : y;
}
WEFT_TV INLINE Vec<T, L, P> log_of_twice(Vec<T, L, P> a) { return log(a) + T(0.69314718055994531); }
WEFT_TV INLINE Vec<T, L, P> asinh(Vec<T, L, P> x) {
  auto a = abs(x), y = library_asinh(x);
  auto large = is_beyond(a, type_of<T>(1e10f, 1e20));
  return any_lane(large) ? where(large, copysign(log_of_twice(a), x), y) : y;
}
WEFT_TV INLINE Vec<T, L, P> acosh(Vec<T, L, P> x) {
  auto y = library_acosh(x);
  auto large = is_beyond(x, type_of<T>(1e10f, 1e20));
  return any_lane(large) ? where(large, log_of_twice(x), y) : y;
}

// Powers and remainders of floating-point numbers; integers have their own (integer.h).
WEFT_LIBRARY2(pow, _u10)
WEFT_LIBRARY2(fmod, )

}  // namespace weft
