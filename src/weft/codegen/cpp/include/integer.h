// Division, remainder, powers, shifts and signs with Python's and eager's rules.
#pragma once
#include "library.h"

namespace weft {

// Whether a divisor that is used is 0, which is an error.
template <class T, int L, int P, class N>
INLINE bool has_zero(Vec<bool, L, P> used, Vec<T, L, P> b, N n) {
  const auto zero = eq(b, splat_lane<L, P, T>(0));
  return any_lane(keep(and_(zero, used), splat_lane<L, P, bool>(0), n));
}

// Integers: division by zero (where it is not used) gives 0; dividing the smallest integer by -1 wraps.
template <class T> INLINE T int_truncdiv(T a, T b) { return b == 0 ? T(0) : same<T, uint8_t> ? T(a / b) : b == T(-1) ? T(-a) : T(a / b); }
template <class T> INLINE T int_pow(T a, T b) {
  if (b < 0) return a == T(1) ? T(1) : a == T(-1) ? (b & 1 ? T(-1) : T(1)) : T(0);
  T r = 1;
  for (; b; b >>= 1, a *= a)
    if (b & 1) r *= a;
  return r;
}

// Quotients of whole vectors through double, which is exact for integers of 52 bits, or through float, for 16 bits: no
// processor divides vectors of integers. Larger ones go lane by lane. By 0: anything.
template <class T, int L> INLINE Part<T, L> quotient_part(Part<T, L> a, Part<T, L> b) {
  typedef typename Choice<(sizeof(T) < 4), float, double>::type F;
  constexpr int most = sizeof(F) == 4 ? REGISTER_BYTES / 4 : 8, C = L < most ? L : most;
  T x[L], y[L], q[L];
  __builtin_memcpy(x, &a, sizeof(a));
  __builtin_memcpy(y, &b, sizeof(b));
  UNROLL for (int i = 0; i < L; i += C) {
    if constexpr (sizeof(T) < 4) {
      const auto m = convert<int32_t, C>(load_part<T, C>(x + i)), n = convert<int32_t, C>(load_part<T, C>(y + i));
      store_part<T, C>(q + i, convert<T, C>(convert<int32_t, C>(convert<F, C>(m) / convert<F, C>(n))));
    } else store_part<T, C>(q + i, convert<T, C>(convert<F, C>(load_part<T, C>(x + i)) / convert<F, C>(load_part<T, C>(y + i))));
  }
  return load_part<T, L>(q);
}
#ifdef WEFT_AVX2
// Integers of less than 51 bits and doubles: in the last bits of a double of 2^52 and a half (so that either sign fits).
constexpr double INTEGERS = 6755399441055744.0;
INLINE Part<double, 4> double_part(Part<int64_t, 4> x) {
  return bits<Part<double, 4>>(x + bits<int64_t>(INTEGERS)) - INTEGERS;
}
template <> INLINE Part<int64_t, 4> quotient_part<int64_t, 4>(Part<int64_t, 4> a, Part<int64_t, 4> b) {
  Part<double, 4> q = double_part(a) / double_part(b);
  asm("vroundpd $11, %1, %0" : "=x"(q) : "x"(q));
  return bits<Part<int64_t, 4>>(q + INTEGERS) - bits<int64_t>(INTEGERS);
}
#endif
WEFT_TV INLINE bool fits_double(Vec<T, L, P> a) {
  if constexpr (sizeof(T) < 8) return true;
#if defined(WEFT_AVX512) || defined(WEFT_AVX2)
  else if constexpr (REGISTER_BYTES == 64 || L == 4) {
    constexpr T limit = (T)1 << (REGISTER_BYTES == 64 ? 52 : 50);
    return !any_lane(or_(lt(a, splat_lane<L, P, T>(-limit)), gt(a, splat_lane<L, P, T>(limit))));
  }
#endif
  else return false;
}
WEFT_TV INLINE Vec<T, L, P> int_quotient(Vec<T, L, P> a, Vec<T, L, P> b) {
  const auto zero = splat_lane<L, P, T>(0);
  if constexpr (L == 1) return map([](T x, T y) { return int_truncdiv(x, y); }, a, b);
  else if (!fits_double(a) || !fits_double(b)) return map([](T x, T y) { return int_truncdiv(x, y); }, a, b);
  else {
    Vec<T, L, P> q;
    PARTS q.p[k] = quotient_part<T, L>(a.p[k], b.p[k]);
    return where(eq(b, zero), zero, q);
  }
}
WEFT_TV INLINE Vec<T, L, P> int_remainder(Vec<T, L, P> a, Vec<T, L, P> b, Vec<T, L, P> q) {
  const auto zero = splat_lane<L, P, T>(0);
  return where(eq(b, zero), zero, sub(a, mul(q, b)));
}

// Integers by function, floating-point numbers as written.
#define WEFT_BY_KIND(NAME, FLOAT, INT)                                                \
  WEFT_TV INLINE Vec<T, L, P> NAME(Vec<T, L, P> a, Vec<T, L, P> b) {                  \
    if constexpr (is_float<T>) return FLOAT(a, b);                                    \
    else return INT;                                                                  \
  }
// Whether a remainder is to be on the divisor's side of zero and is not.
WEFT_TV INLINE Vec<bool, L, P> on_other_side(Vec<T, L, P> r, Vec<T, L, P> b) {
  auto zero = splat_lane<L, P, T>(0);
  return and_(ne(r, zero), xor_(lt(b, zero), lt(r, zero)));
}
// a - trunc(a / b) * b, which is exact for small quotients: rounding may have lifted one to the next integer, then the
// rest is on the other side of zero.
WEFT_TV INLINE Vec<T, L, P> float_fmod(Vec<T, L, P> a, Vec<T, L, P> b) {
#if defined(WEFT_AVX512) || defined(WEFT_AVX2)
  const auto q = trunc(div(a, b));
  const auto most = splat_lane<L, P, T>(sizeof(T) == 4 ? T(1 << 22) : T(1ll << 51));
  const auto small = and_(lt(abs(q), most), lt(abs(b), splat_lane<L, P, T>(T(__builtin_inf()))));
  if (!any_lane(not_(small))) {
    const auto r = fma(neg(q), b, a), same = copysign(r, a);
    return where(eq(r, same), same, add(r, copysign(b, a)));
  }
  // SLEEF's function gives NaN where the quotient overflows.
  const auto infinity = splat_lane<L, P, T>(T(__builtin_inf()));
  if (any_lane(and_(eq(abs(q), infinity), lt(abs(a), infinity))))
    return map([](T x, T y) { return same<T, float> ? (T)__builtin_fmodf(x, y) : (T)__builtin_fmod(x, y); }, a, b);
#endif
  return library_fmod(a, b);
}
WEFT_TV INLINE Vec<T, L, P> float_mod(Vec<T, L, P> a, Vec<T, L, P> b) {
  auto r = float_fmod(a, b);
  return where(on_other_side(r, b), add(r, b), r);
}
WEFT_TV INLINE Vec<T, L, P> int_mod(Vec<T, L, P> a, Vec<T, L, P> b) {
  auto r = int_remainder(a, b, int_quotient(a, b));
  return where(on_other_side(r, b), add(r, b), r);
}
WEFT_TV INLINE Vec<T, L, P> int_floordiv(Vec<T, L, P> a, Vec<T, L, P> b) {
  auto q = int_quotient(a, b);
  return where(on_other_side(int_remainder(a, b, q), b), sub(q, splat_lane<L, P, T>(1)), q);
}
// The floor of the exact quotient, which rounding of a / b may have lifted to the next integer.
WEFT_TV INLINE Vec<T, L, P> float_floordiv(Vec<T, L, P> a, Vec<T, L, P> b) {
  auto zero = splat_lane<L, P, T>(0), one = splat_lane<L, P, T>(1), half = splat_lane<L, P, T>(T(0.5));
  auto r = float_fmod(a, b), q = div(sub(a, r), b);
  q = where(on_other_side(r, b), sub(q, one), q);
  auto f = floor(q), nearest = where(gt(sub(q, f), half), add(f, one), f);
  auto exact = div(a, b);
  return where(eq(b, zero), exact, where(eq(q, zero), copysign(zero, exact), nearest));
}
WEFT_BY_KIND(floordiv, float_floordiv, int_floordiv(a, b))
WEFT_BY_KIND(mod, float_mod, int_mod(a, b))
WEFT_BY_KIND(fmod, float_fmod, int_remainder(a, b, int_quotient(a, b)))
WEFT_BY_KIND(pow, library_pow, map([](T x, T y) { return int_pow(x, y); }, a, b))
WEFT_TV INLINE Vec<T, L, P> truncdiv(Vec<T, L, P> a, Vec<T, L, P> b) {
  if constexpr (is_float<T>) return trunc(div(a, b));
  else return int_quotient(a, b);
}

WEFT_TV INLINE Vec<T, L, P> sign(Vec<T, L, P> a) {
  auto zero = splat_lane<L, P, T>(0), one = splat_lane<L, P, T>(1);
  auto r = where(lt(zero, a), one, zero);
  if constexpr (same<T, uint8_t>) return r;
  else return where(lt(a, zero), neg(one), r);
}
WEFT_TV INLINE Vec<bool, L, P> signbit(Vec<T, L, P> a) {
  if constexpr (is_float<T>) {
    typedef IntLike<T> I;
    return lt(bits<Vec<I, L, P>>(a), splat_lane<L, P, I>(0));
  } else return lt(a, splat_lane<L, P, T>(0));
}
WEFT_TV INLINE Vec<bool, L, P> isinf(Vec<T, L, P> a) { return eq(abs(a), splat_lane<L, P, T>(T(__builtin_inf()))); }

// Shifts by less than nothing or by all bits give 0, or all sign bits, as the instructions of AVX2 do. Narrow types in 32
// bits: those have instructions.
#if defined(WEFT_AVX512) || defined(WEFT_AVX2)
template <class V> constexpr bool has_shifts = sizeof(V) >= 16 && sizeof(V) <= REGISTER_BYTES;
#else
template <class V> constexpr bool has_shifts = false;
#endif
#define WEFT_SHIFT(INSTRUCTION) asm(INSTRUCTION " %2, %1, %0" : "=v"(x) : "v"(x), "v"(n))
WEFT_TV INLINE Vec<T, L, P> shl(Vec<T, L, P> a, Vec<T, L, P> b) {
  typedef typename IntOf<sizeof(T) < 4 ? 4 : sizeof(T)>::type I;
  PARTS {
    auto x = convert<I, L>(a.p[k]), n = convert<I, L>(b.p[k]);
    if constexpr (has_shifts<decltype(x)>) {
      if constexpr (sizeof(I) == 4) WEFT_SHIFT("vpsllvd");
      else WEFT_SHIFT("vpsllvq");
      a.p[k] = convert<T, L>(x);
      continue;
    }
    auto outside = (n < 0) | (n >= (I)(8 * sizeof(T)));
    a.p[k] = convert<T, L>(outside ? x - x : x << (outside ? n - n : n));
  }
  return a;
}
WEFT_TV INLINE Vec<T, L, P> shr(Vec<T, L, P> a, Vec<T, L, P> b) {
  typedef typename IntOf<sizeof(T) < 4 ? 4 : sizeof(T)>::type I;
  PARTS {
    auto x = convert<I, L>(a.p[k]), n = convert<I, L>(b.p[k]);
    if constexpr (has_shifts<decltype(x)> && sizeof(I) == 4) {
      WEFT_SHIFT("vpsravd");
      a.p[k] = convert<T, L>(x);
      continue;
    }
    auto outside = (n < 0) | (n >= (I)(8 * sizeof(T)));
    a.p[k] = convert<T, L>(x >> (outside ? n - n + (I)(8 * sizeof(I) - 1) : n));
  }
  return a;
}

}  // namespace weft
