// Vectorised elementary functions in eager's accuracy (1 to 3 ulp at most) with IEEE special values.
//
// Polynomials fitted for this file (minimax on the interval named beside each), evaluated with fma: those of float and
// of double stand beside each other, as type_of<T>(float's, double's) or as overloads.
// Rarer functions: see library.h.
#pragma once
#include "core.h"

namespace weft {

// ---- notation for this file ---------------------------------------------------------------------

#define WEFT_TV template <class T, int L, int P>
#define WEFT_FV template <int L, int P>
template <int L, int P> using F32 = Vec<float, L, P>;
template <int L, int P> using F64 = Vec<double, L, P>;

WEFT_TV INLINE Vec<T, L, P> operator+(Vec<T, L, P> a, Vec<T, L, P> b) { return add(a, b); }
WEFT_TV INLINE Vec<T, L, P> operator-(Vec<T, L, P> a, Vec<T, L, P> b) { return sub(a, b); }
WEFT_TV INLINE Vec<T, L, P> operator*(Vec<T, L, P> a, Vec<T, L, P> b) { return mul(a, b); }
WEFT_TV INLINE Vec<T, L, P> operator/(Vec<T, L, P> a, Vec<T, L, P> b) { return div(a, b); }
WEFT_TV INLINE Vec<T, L, P> all(Vec<T, L, P>, Lane<T> c) { return splat_lane<L, P, T>(c); }
WEFT_TV INLINE Vec<T, L, P> operator+(Vec<T, L, P> a, Lane<T> b) { return a + all(a, b); }
WEFT_TV INLINE Vec<T, L, P> operator-(Vec<T, L, P> a, Lane<T> b) { return a - all(a, b); }
WEFT_TV INLINE Vec<T, L, P> operator*(Vec<T, L, P> a, Lane<T> b) { return a * all(a, b); }
WEFT_TV INLINE Vec<T, L, P> operator&(Vec<T, L, P> a, Lane<T> b) { return and_(a, all(a, b)); }
WEFT_TV INLINE Vec<T, L, P> fma(Vec<T, L, P> a, Lane<T> b, Vec<T, L, P> c) { return fma(a, all(a, b), c); }
WEFT_TV INLINE Vec<T, L, P> fma(Vec<T, L, P> a, Vec<T, L, P> b, Lane<T> c) { return fma(a, b, all(a, c)); }

// A constant, rounded for float and for double in ways of their own.
template <class T> constexpr T type_of(float a, double b) {
  if constexpr (same<T, float>) return a;
  else return b;
}

#define WEFT_SERIES template <class T, int L, int P, class... C> INLINE Vec<T, L, P>
// c0 + c2 z + c4 z^2 + ...
WEFT_TV INLINE Vec<T, L, P> every_second(Vec<T, L, P> z, Lane<T> c0) { return all(z, c0); }
WEFT_TV INLINE Vec<T, L, P> every_second(Vec<T, L, P> z, Lane<T> c0, Lane<T>) { return all(z, c0); }
WEFT_SERIES every_second(Vec<T, L, P> z, Lane<T> c0, Lane<T>, C... c) { return fma(z, every_second(z, c...), c0); }
// c0 + c1 x + c2 x^2 + ...: long ones in two chains, half as long each (very long ones in four). Of what waits for its operands a processor
// holds some 100 instructions.
WEFT_TV INLINE Vec<T, L, P> poly(Vec<T, L, P> x, Lane<T> c0) { return all(x, c0); }
// c0 + c4 z + c8 z^2 + ...
WEFT_TV INLINE Vec<T, L, P> every_fourth(Vec<T, L, P> z, Lane<T> c0) { return all(z, c0); }
WEFT_TV INLINE Vec<T, L, P> every_fourth(Vec<T, L, P> z, Lane<T> c0, Lane<T>) { return all(z, c0); }
WEFT_TV INLINE Vec<T, L, P> every_fourth(Vec<T, L, P> z, Lane<T> c0, Lane<T>, Lane<T>) { return all(z, c0); }
WEFT_TV INLINE Vec<T, L, P> every_fourth(Vec<T, L, P> z, Lane<T> c0, Lane<T>, Lane<T>, Lane<T>) { return all(z, c0); }
WEFT_SERIES every_fourth(Vec<T, L, P> z, Lane<T> c0, Lane<T>, Lane<T>, Lane<T>, C... c) {
  return fma(z, every_fourth(z, c...), c0);
}
WEFT_SERIES in_four(Vec<T, L, P> x, Lane<T> c0, Lane<T> c1, Lane<T> c2, C... c) {
  const auto square = x * x, z = square * square;
  const auto high = fma(x, every_fourth(z, c...), every_fourth(z, c2, c...));
  return fma(square, high, fma(x, every_fourth(z, c1, c2, c...), every_fourth(z, c0, c1, c2, c...)));
}
WEFT_SERIES poly(Vec<T, L, P> x, Lane<T> c0, C... c) {
  if constexpr (sizeof...(c) < 7) return fma(x, poly(x, c...), c0);
  else if constexpr (sizeof...(c) > 16) return in_four(x, c0, c...);
  else return fma(x, every_second(x * x, c...), every_second(x * x, c0, c...));
}

template <class T> constexpr int DIGITS = type_of<T>(23, 52);  // of the mantissa
template <class T> constexpr T SIGN = T(UIntLike<T>(1) << (8 * sizeof(T) - 1));
WEFT_TV INLINE Vec<IntLike<T>, L, P> as_int(Vec<T, L, P> x) { return bits<Vec<IntLike<T>, L, P>>(x); }
template <class T, class I, int L, int P> INLINE Vec<T, L, P> as_float(Vec<I, L, P> x) { return bits<Vec<T, L, P>>(x); }
WEFT_TV INLINE Vec<T, L, P> shift_left(Vec<T, L, P> a, int n) {
  PARTS a.p[k] = a.p[k] << n;
  return a;
}
WEFT_TV INLINE Vec<T, L, P> shift_right(Vec<T, L, P> a, int n) {  // of bits
  typedef Part<UIntLike<T>, L> U;
  PARTS a.p[k] = bits<Part<T, L>>(bits<U>(a.p[k]) >> n);
  return a;
}
WEFT_TV INLINE Vec<T, L, P> copysign(Vec<T, L, P> a, Vec<T, L, P> b) {
  constexpr IntLike<T> sign = SIGN<IntLike<T>>;
#ifdef WEFT_AVX512
  if constexpr (sizeof(a.p[0]) >= 16) {
    PARTS asm("vpternlogd $0xd8, %2, %1, %0" : "+v"(a.p[k]) : "v"(b.p[k]), "v"(sign - Part<IntLike<T>, L>{}));
    return a;
  }
#endif
  return as_float<T>(or_(as_int(a) & (IntLike<T>)~sign, as_int(b) & sign));
}
// a < b ? c : d, without a mask between
WEFT_TV INLINE Vec<T, L, P> if_less(Vec<T, L, P> a, Vec<T, L, P> b, Vec<T, L, P> c, Vec<T, L, P> d) {
  PARTS d.p[k] = a.p[k] < b.p[k] ? c.p[k] : d.p[k];
  return d;
}
// The smaller (greater) one of x and a bound; NaN passes.
#define WEFT_BOUND(NAME, INSTRUCTION, COMPARE)                                                                        \
  WEFT_TV INLINE Vec<T, L, P> NAME(Vec<T, L, P> x, Lane<T> bound) {                                                   \
    PARTS {                                                                                                           \
      auto y = x.p[k], b = bound - Part<T, L>{};                                                                      \
      if constexpr (has_extremes<T, sizeof(y)> && same<T, float>) asm(INSTRUCTION "ps %1, %2, %0" : "=v"(x.p[k]) : "v"(y), "v"(b)); \
      else if constexpr (has_extremes<T, sizeof(y)>) asm(INSTRUCTION "pd %1, %2, %0" : "=v"(x.p[k]) : "v"(y), "v"(b)); \
      else x.p[k] = b COMPARE y ? b : y;                                                                              \
    }                                                                                                                 \
    return x;                                                                                                         \
  }
WEFT_BOUND(at_most, "vmin", <)
WEFT_BOUND(at_least, "vmax", >)

// ---- rounding and roots -------------------------------------------------------------------------

#if defined(WEFT_AVX512) || defined(WEFT_AVX2)
#ifdef WEFT_AVX512
#define WEFT_ROUND_PS "vrndscaleps"
#define WEFT_ROUND_PD "vrndscalepd"
#else
#define WEFT_ROUND_PS "vroundps"
#define WEFT_ROUND_PD "vroundpd"
#endif
#define WEFT_ROUND(NAME, MODE, FN32, FN64)                                                    \
  WEFT_TV INLINE Vec<T, L, P> NAME(Vec<T, L, P> a) {                                          \
    PARTS {                                                                                   \
      auto x = a.p[k];                                                                        \
      if constexpr (sizeof(x) < 16) {                                                         \
        if constexpr (L > 1) return map([](T y) { return same<T, float> ? (T)FN32(y) : (T)FN64(y); }, a); \
        else if constexpr (same<T, float>) a.p[k] = FN32(x);                                  \
        else a.p[k] = FN64(x);                                                                \
      } else if constexpr (same<T, float>) asm(WEFT_ROUND_PS " $" #MODE ", %1, %0" : "=v"(a.p[k]) : "v"(x)); \
      else asm(WEFT_ROUND_PD " $" #MODE ", %1, %0" : "=v"(a.p[k]) : "v"(x));                  \
    }                                                                                         \
    return a;                                                                                 \
  }
#else
#define WEFT_ROUND(NAME, MODE, FN32, FN64)                                                    \
  WEFT_TV INLINE Vec<T, L, P> NAME(Vec<T, L, P> a) {                                          \
    return map([](T y) { return same<T, float> ? (T)FN32(y) : (T)FN64(y); }, a);              \
  }
#endif
WEFT_ROUND(round, 8, __builtin_rintf, __builtin_rint)
WEFT_ROUND(floor, 9, __builtin_floorf, __builtin_floor)
WEFT_ROUND(ceil, 10, __builtin_ceilf, __builtin_ceil)
WEFT_ROUND(trunc, 11, __builtin_truncf, __builtin_trunc)

WEFT_TV INLINE Vec<T, L, P> sqrt(Vec<T, L, P> a) {
#if defined(WEFT_AVX512) || defined(WEFT_AVX2)
  if constexpr (sizeof(a.p[0]) >= 16) {
    PARTS {
      auto x = a.p[k];
      if constexpr (same<T, float>) asm("vsqrtps %1, %0" : "=v"(a.p[k]) : "v"(x));
      else asm("vsqrtpd %1, %0" : "=v"(a.p[k]) : "v"(x));
    }
    return a;
  }
#endif
  return map([](T y) { return same<T, float> ? (T)__builtin_sqrtf(y) : (T)__builtin_sqrt(y); }, a);
}
WEFT_TV INLINE Vec<T, L, P> rsqrt(Vec<T, L, P> a) { return reciprocal(sqrt(a)); }

// ---- exponentials -------------------------------------------------------------------------------

// Added to a number, it rounds it to an integer and leaves that, plus the exponent's bias, in the last bits.
template <class T> constexpr T BIASED = type_of<T>(12582912.0f + 127.0f, 6755399441055744.0 + 1023.0);
// 2^n of BIASED + n, where the power is a normal number or zero.
WEFT_TV INLINE Vec<T, L, P> power_of_two(Vec<T, L, P> biased) { return as_float<T>(shift_left(as_int(biased), DIGITS<T>)); }
// x * 2^n for integral n, |n| at most twice the greatest exponent; one rounding where the result is subnormal.
WEFT_TV INLINE Vec<T, L, P> scale(Vec<T, L, P> x, Vec<T, L, P> n) {
#ifdef WEFT_AVX512
  if constexpr (sizeof(x.p[0]) >= 16) {
    PARTS {
      auto y = x.p[k];
      if constexpr (same<T, float>) asm("vscalefps %2, %1, %0" : "=v"(x.p[k]) : "v"(y), "v"(n.p[k]));
      else asm("vscalefpd %2, %1, %0" : "=v"(x.p[k]) : "v"(y), "v"(n.p[k]));
    }
    return x;
  }
#endif
  auto half = fma(n, T(0.5), all(x, BIASED<T>));
  return x * power_of_two(half) * power_of_two(n - (half - BIASED<T>) + BIASED<T>);
}
template <class T, int L, int P> struct Reduced { Vec<T, L, P> biased, n, r; };
// x = n ln 2 + r, |r| <= ln 2 / 2.
WEFT_TV INLINE Reduced<T, L, P> reduce_exp(Vec<T, L, P> x) {
  auto biased = fma(x, type_of<T>(1.44269504f, 1.4426950408889634), all(x, BIASED<T>));
  auto n = biased - BIASED<T>;
  auto r = fma(n, type_of<T>(-0.693145752f, -0.693147180559663), x);
  return {biased, n, fma(n, type_of<T>(-1.42860677e-6f, -2.8235290563031577e-13), r)};
}
// (e^r - 1 - r) / r^2 for |r| <= 0.35
WEFT_FV INLINE F32<L, P> exp_tail(F32<L, P> r) {
  return poly(r, 0.4999999345f, 0.1666652065f, 0.04166838694f, 0.008368714977f, 0.001381464825f);
}
WEFT_FV INLINE F64<L, P> exp_tail(F64<L, P> r) {
  return poly(r, 0.5000000000000011, 0.16666666666666413, 0.04166666666653017, 0.00833333333349432, 0.001388888894362763,
              0.0001984126950687706, 2.4801493101844786e-05, 2.755758611525158e-06, 2.7630247234896177e-07,
              2.500014045134761e-08);
}
WEFT_TV INLINE Vec<T, L, P> exp_of_reduced(Vec<T, L, P> r) { return fma(r, fma(r, exp_tail(r), T(1)), T(1)); }
WEFT_TV INLINE Vec<T, L, P> expm1_of_reduced(Vec<T, L, P> r) { return fma(r * r, exp_tail(r), r); }
// er * 2^n: at once or, where a result is below the normal numbers, which takes processors some 100 times as long
// (scores masked by -100), as a number of the smallest steps, whose bits are those of the result.
WEFT_TV INLINE Vec<T, L, P> scale_down(Vec<T, L, P> er, Vec<T, L, P> n, Vec<T, L, P> x, Vec<T, L, P> normal) {
  constexpr T one = T(UIntLike<T>(1) << DIGITS<T>);
  auto steps = fma(er, power_of_two(n + (BIASED<T> + type_of<T>(149.0f, 1074.0))), all(x, one));
  auto small = as_float<T>(sub(as_int(steps), as_int(all(x, one))));
  return if_less(x, normal, small, scale(er, if_less(x, normal, all(x, 0), n)));
}
// Whether a lane is less (perhaps not, beside NaN).
WEFT_TV INLINE bool any_less(Vec<T, L, P> x, Lane<T> bound) {
  auto least = x.p[0];
  UNROLL for (int k = 1; k < P; ++k) least = x.p[k] < least ? x.p[k] : least;
#ifdef WEFT_AVX512
  if constexpr (sizeof(least) >= 16) {
    typename IntOf<(L > 8 ? 2 : 1)>::utype lanes;
    const auto b = bound - Part<T, L>{};
    if constexpr (same<T, float>) asm("vcmpltps %2, %1, %0" : "=Yk"(lanes) : "v"(least), "v"(b));
    else asm("vcmpltpd %2, %1, %0" : "=Yk"(lanes) : "v"(least), "v"(b));
    return lanes != 0;
  }
#endif
  Vec<T, L, 1> one;
  one.p[0] = least;
  return any_lane(lt(one, all(one, bound)));
}
WEFT_TV INLINE Vec<T, L, P> power(Vec<T, L, P> er, Vec<T, L, P> n, Vec<T, L, P> x, Lane<T> normal) {
  if (__builtin_expect(any_less(x, normal), 0)) return scale_down(er, n, x, all(x, normal));
  return scale(er, n);
}
// Powers that are zero (scores masked by -inf) are chosen, not computed.
WEFT_TV INLINE Vec<T, L, P> exp(Vec<T, L, P> x) {
  auto zero = all(x, 0), least = all(x, type_of<T>(-104.0f, -746.0));
  auto y = if_less(x, least, zero, at_most(x, type_of<T>(89.0f, 710.0)));
  auto [biased, n, r] = reduce_exp(y);
  return if_less(x, least, zero, power(exp_of_reduced(r), n, y, type_of<T>(-87.3365479f, -708.3964185322641)));
}
WEFT_TV INLINE Vec<T, L, P> exp2(Vec<T, L, P> x) {
  auto zero = all(x, 0), least = all(x, type_of<T>(-151.0f, -1076.0));
  auto y = if_less(x, least, zero, at_most(x, type_of<T>(129.0f, 1025.0)));
  auto n = y + BIASED<T> - BIASED<T>;
  auto r = (y - n) * type_of<T>(0.693147181f, 0.6931471805599453);
  return if_less(x, least, zero, power(exp_of_reduced(r), n, y, type_of<T>(-126.0f, -1022.0)));
}
WEFT_TV INLINE Vec<T, L, P> expm1(Vec<T, L, P> x) {
  auto [biased, n, r] = reduce_exp(at_most(at_least(x, type_of<T>(-20.0f, -40.0)), type_of<T>(89.0f, 710.0)));
  auto half_power = power_of_two(biased - T(1));  // 2^128 would overflow
  auto y = fma(half_power, expm1_of_reduced(r), half_power - T(0.5));
  return if_less(abs(x), all(x, type_of<T>(1e-7f, 1e-16)), x, y + y);
}
WEFT_TV INLINE Vec<T, L, P> sigmoid(Vec<T, L, P> x) {  // e^-87 (-708) + 1 is 1
  auto [biased, n, r] = reduce_exp(at_most(at_least(neg(x), type_of<T>(-87.0f, -708.0)), type_of<T>(89.0f, 710.0)));
  return reciprocal(scale(exp_of_reduced(r), n) + T(1));
}

// 2^-q for q >= 0; 0 from 127 (1023) on.
WEFT_FV INLINE F32<L, P> power_series(F32<L, P> f) {  // 2^-f for |f| <= 1/2
  return poly(f, 1.0f, -0.6931469779f, 0.2402224214f, -0.0555073326f, 0.009671509601f, -0.001326486464f);
}
WEFT_FV INLINE F64<L, P> power_series(F64<L, P> f) {
  return poly(f, 1.0, -0.6931471805599497, 0.24022650695908768, -0.05550410866445881, 0.009618129108034456,
              -0.0013333558228563907, 0.00015403529961292365, -1.5252658115594114e-05, 1.321566276043115e-06,
              -1.0208538032481528e-07, 7.037290687936639e-09);
}
WEFT_TV INLINE Vec<T, L, P> negative_power(Vec<T, L, P> q) {
  q = at_most(q, type_of<T>(127.0f, 1023.0));
  auto biased = all(q, BIASED<T>) - q;
  return power_series(biased - BIASED<T> + q) * power_of_two(biased);
}

WEFT_TV INLINE Vec<T, L, P> tanh(Vec<T, L, P> x) {  // with t = e^(-2 |x|) - 1: -t / (t + 2)
  auto [biased, n, r] = reduce_exp(at_most(abs(x), type_of<T>(10.0f, 20.0)) * T(-2));
  auto power = power_of_two(biased);
  auto t = fma(power, expm1_of_reduced(r), power - T(1));
  return copysign(t / (t + T(2)), x);  // also for -0
}

// ---- logarithms ---------------------------------------------------------------------------------

template <class T, int L, int P> struct Split { Vec<T, L, P> e, f, y; };  // x = 2^e (1 + f);  log(1 + f) = f + y
// y for sqrt(1/2) - 1 <= f <= sqrt(2) - 1
WEFT_FV INLINE F32<L, P> log_tail(F32<L, P> f) {
  auto p = poly(f, 0.333333126f, -0.250000096f, 0.2000211875f, -0.1666799562f, 0.1421955056f, -0.1240559201f,
                0.1188817757f, -0.116756388f, 0.06746591932f);
  auto z = f * f;
  return fma(z, all(f, -0.5f), z * f * p);
}
WEFT_FV INLINE F64<L, P> log_tail(F64<L, P> f) {  // with s = f / (2 + f): log(1 + f) = 2 s + s^3 p(s^2)
  auto s = f / (f + 2.0), z = s * s, half_square = f * f * 0.5;
  auto p = poly(z, 0.6666666666666666, 0.40000000000000885, 0.2857142857079935, 0.22222222392678806,
                0.18181795537085654, 0.15386245304628174, 0.13268623200325125, 0.13088193319166916);
  return fma(s, fma(z, p, half_square), neg(half_square));
}
WEFT_TV INLINE Split<T, L, P> split_log(Vec<T, L, P> x) {
  typedef IntLike<T> I;
  constexpr int digits = DIGITS<T>, bias = sizeof(T) == 4 ? 127 : 1023;
  constexpr I one = (I)bias << digits, root = sizeof(T) == 4 ? (I)0x3f3504f3 : (I)0x3fe6a09e667f3bcd;
  constexpr T power = T((I)1 << digits);
  auto least = all(x, type_of<T>(1.17549435e-38f, 2.2250738585072014e-308));
  auto u = as_int(if_less(x, least, x * power, x));
  // Exponent such that the mantissa lies in [sqrt(1/2), sqrt(2)).
  auto i = shift_right(u + (I)(one - root), digits);
  auto f = as_float<T>(u - shift_left(i, digits) + one) - T(1);
  auto e = as_float<T>(or_(i, as_int(all(x, power)))) - if_less(x, least, all(x, power + T(bias + digits)), all(x, power + T(bias)));
  return {e, f, log_tail(f)};
}
// log of 0, negative numbers, infinity and NaN; y where x is none of these.
WEFT_TV INLINE Vec<T, L, P> log_special(Vec<T, L, P> x, Vec<T, L, P> y) {
#ifdef WEFT_AVX512
  if constexpr (sizeof(x.p[0]) >= 16) {  // one instruction, told what each kind of number becomes
    const auto kinds = (IntLike<T>)0x03530422 - Part<IntLike<T>, L>{};
    PARTS {
      if constexpr (same<T, float>) asm("vfixupimmps $0, %2, %1, %0" : "+v"(y.p[k]) : "v"(x.p[k]), "v"(kinds));
      else asm("vfixupimmpd $0, %2, %1, %0" : "+v"(y.p[k]) : "v"(x.p[k]), "v"(kinds));
    }
    return y;
  }
#endif
  auto infinity = all(x, T(__builtin_inf())), zero = all(x, 0);
  y = if_less(x, infinity, y, x);  // +inf, NaN
  y = if_less(zero, abs(x), y, if_less(abs(x), infinity, neg(infinity), y));
  return if_less(x, zero, all(x, T(__builtin_nan(""))), y);
}
WEFT_TV INLINE Vec<T, L, P> log_finite(Vec<T, L, P> x) {
  auto [e, f, y] = split_log(x);
  constexpr T high = type_of<T>(0.693359375f, 0.693147180559663), low = type_of<T>(-2.12194440e-4f, 2.8235290563031577e-13);
  return fma(e, high, f + fma(e, low, y));
}
WEFT_TV INLINE Vec<T, L, P> log(Vec<T, L, P> x) { return log_special(x, log_finite(x)); }
WEFT_TV INLINE Vec<T, L, P> log2(Vec<T, L, P> x) {
  auto [e, f, y] = split_log(x);
  // (f + y) log2(e), with log2(e) = 1 + 0.4427
  auto t = fma(f + y, type_of<T>(0.44269504f, 0.44269504088896343), y);
  return log_special(x, e + (f + t));
}
WEFT_TV INLINE Vec<T, L, P> log10(Vec<T, L, P> x) {
  auto [e, f, y] = split_log(x);
  auto t = fma(e, type_of<T>(4.60503898e-6f, 3.694239077158931e-13), (f + y) * type_of<T>(0.434294482f, 0.4342944819032518));
  return log_special(x, fma(e, type_of<T>(0.301025391f, 0.30102999566361177), t));
}
WEFT_TV INLINE Vec<T, L, P> log1p(Vec<T, L, P> x) {
  auto one = all(x, 1), u = x + one;
  // What rounding u lost, relative to u.
  auto lost = where(gt(x, one), one - (u - x), x - (u - one));
  auto y = log_finite(u) + lost / u;
  y = where(eq(u, one), x, y);
  return log_special(u, y);
}

// ---- error function -----------------------------------------------------------------------------

// (erf(x) - x) / x for z = x^2 <= 1
WEFT_FV INLINE F32<L, P> erf_tail(F32<L, P> z) {
  return poly(z, 0.1283791657f, -0.3761262582f, 0.1128358515f, -0.02685381188f, 0.005188327502f, -0.0008010191457f,
              7.853852865e-05f);
}
WEFT_FV INLINE F64<L, P> erf_tail(F64<L, P> z) {
  return poly(z, 0.12837916709551256, -0.3761263890318352, 0.11283791670944185, -0.02686617064311142, 0.005223977606118157,
              -0.0008548325929302933, 0.00012055293576655873, -1.4924712299041705e-05, 1.6447131553146343e-06,
              -1.6206313739195466e-07, 1.3710980744593308e-08, -7.779469796777585e-10);
}
// -log2(1 - erf(b)) for 1 <= b <= 4 (6)
WEFT_FV INLINE F32<L, P> erfc_exponent(F32<L, P> b) {
  return poly(b, 0.000874314365f, 1.624451478f, 0.923375415f, 0.1463105065f, -0.03030053535f, 0.003941726061f,
              -0.0002361857979f);
}
WEFT_FV INLINE F64<L, P> erfc_exponent(F64<L, P> b) {
  return poly(b, 5.286098341868315e-07, 1.6279020360013907, 0.9184700147346827, 0.14821111684509525, -0.027490210509252606,
              -0.0004392123772542838, 0.00257300542561165, -0.0009263834843477786, 5.2657925222152894e-05,
              0.00011628694162230081, -7.572162048915202e-05, 2.9431380704438816e-05, -8.459825879873494e-06,
              1.9049121774662112e-06, -3.421392157374947e-07, 4.906574304155024e-08, -5.561357232796951e-09,
              4.878444329469743e-10, -3.196262350378901e-11, 1.4724101793619991e-12, -4.253628695668268e-14,
              5.796264686663977e-16);
}
WEFT_TV INLINE Vec<T, L, P> erf(Vec<T, L, P> x) {
  auto a = abs(x);
  auto small = fma(x, erf_tail(x * x), x);
  auto large = all(x, 1) - negative_power(erfc_exponent(at_most(a, type_of<T>(4.0f, 6.0))));
  return if_less(a, all(x, 1), small, copysign(large, x));
}
// (1 + 2 a) e^(a^2) erfc(a) for a >= 0 and t = (a - k) / (a + k), k = 2 (3), which is smooth up to infinity
// (Shepherd and Laframboise, Mathematics of Computation 36, 1981).
WEFT_FV INLINE F32<L, P> scaled_erfc(F32<L, P> t) {
  return poly(t, 1.27697837f, -0.0927639604f, -0.166030437f, 0.164055198f, -0.0542138778f, -0.00806206837f,
              0.00866199844f, 0.00132876774f, -0.0012606344f, -0.00042251547f);
}
WEFT_FV INLINE F64<L, P> scaled_erfc(F64<L, P> t) {
  return poly(t, 1.2530080582697296, -0.13562110612458067, -0.04756229435344671, 0.12964515870270443, -0.1192736634155118,
              0.06830802734584185, -0.023770514914554265, 0.002529391787669092, 0.0018886903150891136,
              -0.0007798320325464751, -0.00010515950712088183, 0.00012509812224376389, 4.94820186655648e-06,
              -2.0096529953503006e-05, -7.2768869661579e-07, 3.4637798916718807e-06, 3.4908866785504095e-07,
              -6.047180034444154e-07, -1.3113322169787245e-07, 9.165163529845378e-08, 3.287068163369429e-08,
              -8.434001655651974e-09, -4.182582514492672e-09);
}
// a * a - square, exactly: what rounding a * a to `square` lost.
WEFT_TV INLINE Vec<T, L, P> lost_by_square(Vec<T, L, P> a, Vec<T, L, P> square) {
#if defined(WEFT_AVX512) || defined(WEFT_AVX2)
  return fma(a, a, neg(square));
#else  // fma rounds twice: the halves of a's digits have exact products
  typedef IntLike<T> I;
  auto high = as_float<T>(as_int(a) & ((I)-1 << (DIGITS<T> + 3) / 2)), low = a - high;
  return fma(high * T(2), low, high * high - square) + low * low;
#endif
}
WEFT_TV INLINE Vec<T, L, P> erfc(Vec<T, L, P> x) {
  constexpr T k = type_of<T>(2.0f, 3.0);
  auto a = at_most(abs(x), type_of<T>(11.0f, 28.0));  // beyond it is 0
  auto square = a * a, lost = lost_by_square(a, square);
  auto up = a + k, scale = fma(a, T(2), all(x, 1)), both = reciprocal(up * scale);  // one division
  auto y = exp(neg(square)) * (scaled_erfc((a - k) * scale * both) * (up * both));
  y = fma(neg(lost), y, y);
  return if_less(x, all(x, 0), all(x, 2) - y, y);
}
WEFT_FV INLINE F64<L, P> normal_cdf(F64<L, P> x) { return fma(erf(x * 0.7071067811865476), 0.5, all(x, 0.5)); }
// By the share beyond |x|, whose -log2 the polynomial is up to 6; from there it grows faster, to 127 at 13.
WEFT_FV INLINE F32<L, P> normal_cdf(F32<L, P> x) {
  auto q = poly(at_most(abs(x), 14.0f), 1.0f, 1.15110992f, 0.4591549665f, 0.05268811625f, -0.007374144613f,
                0.000392335721f, 7.640613591e-05f, -1.605420657e-05f, 9.144347224e-07f);
  auto beyond = negative_power(q);
  return if_less(x, all(x, 0), beyond, all(x, 1) - beyond);
}

// ---- sine and cosine ----------------------------------------------------------------------------

template <class T, int L, int P> struct Quadrant { Vec<IntLike<T>, L, P> q; Vec<T, L, P> sine, cosine; };
// pi/2 in three positive parts (so that -0 stays): n times the first two must be exact where there is no fused
// multiply-add.
#if defined(WEFT_AVX512) || defined(WEFT_AVX2)
constexpr float HALF_PI[3] = {1.57079625f, 7.54978942e-08f, 5.39030295e-15f}, QUADRANT_LIMIT = 1e5f;
#else
constexpr float HALF_PI[3] = {1.5703125f, 4.83751297e-4f, 7.54978995e-8f}, QUADRANT_LIMIT = 4096.0f;
#endif
constexpr double HALF_PI_OF_DOUBLE[3] = {1.5707963267341256, 6.07710049817245e-11, 8.333742918520879e-20};
// (sin(r) - r) / r^3 and (cos(r) - 1 + r^2 / 2) / r^4 for z = r^2, |r| <= pi/4
WEFT_FV INLINE F32<L, P> sine_tail(F32<L, P> z) {
  return poly(z, -0.1666666664f, 0.008333329144f, -0.0001983925663f, 2.717564411e-6f);
}
WEFT_FV INLINE F32<L, P> cosine_tail(F32<L, P> z) {
  return poly(z, 0.04166666662f, -0.001388888344f, 2.47994364e-5f, -2.720330326e-7f);
}
WEFT_FV INLINE F64<L, P> sine_tail(F64<L, P> z) {
  return poly(z, -0.16666666666666666, 0.008333333333333331, -0.00019841269841265017, 2.755731921930192e-06,
              -2.5052106219521895e-08, 1.6058529572267877e-10, -7.586576588171073e-13);
}
WEFT_FV INLINE F64<L, P> cosine_tail(F64<L, P> z) {
  return poly(z, 0.041666666666666664, -0.0013888888888887382, 2.480158729874307e-05, -2.7557317260008837e-07,
              2.0876143827993133e-09, -1.1382456778061306e-11);
}
// The quadrant of x (in the last bits of q), its number n, and x less n times the first part of pi/2.
template <class T, int L, int P> struct Turn { Vec<IntLike<T>, L, P> q; Vec<T, L, P> n, near; };
WEFT_TV INLINE Turn<T, L, P> quadrant_of(Vec<T, L, P> x) {
  constexpr T start = type_of<T>(12582912.0f, 6755399441055744.0);
  auto q = fma(x, type_of<T>(0.636619772f, 0.6366197723675814), all(x, start));
  auto n = q - start;
  return {as_int(q), n, fma(n, -type_of<T>(HALF_PI[0], HALF_PI_OF_DOUBLE[0]), x)};
}
// x = q pi/2 + r; sine and cosine of r, for |x| < QUADRANT_LIMIT.
WEFT_TV INLINE Quadrant<T, L, P> quadrant(Vec<T, L, P> x) {
  auto [q, n, near] = quadrant_of(x);
  auto r = fma(n, -type_of<T>(HALF_PI[1], HALF_PI_OF_DOUBLE[1]), near);
  r = fma(n, -type_of<T>(HALF_PI[2], HALF_PI_OF_DOUBLE[2]), r);
  auto z = r * r;
  auto sine = fma(r * z, sine_tail(z), r);  // +0 for -0
  return {q, as_float<T>(or_(as_int(sine), as_int(r) & SIGN<IntLike<T>>)), fma(z * z, cosine_tail(z), fma(z, T(-0.5), all(x, 1)))};
}
WEFT_TV INLINE bool any_large(Vec<T, L, P> x) { return any_lane(not_(lt(abs(x), all(x, QUADRANT_LIMIT)))); }
WEFT_TV INLINE Vec<T, L, P> pick(Quadrant<T, L, P> a, Vec<IntLike<T>, L, P> q) {  // sin(r + q pi/2)
  auto y = where(eq(q & 1, all(q, 0)), a.sine, a.cosine);
  return as_float<T>(xor_(as_int(y), shift_left(q & 2, 8 * sizeof(T) - 2)));
}
WEFT_TV INLINE Vec<T, L, P> sin(Vec<T, L, P> x) {
  if (__builtin_expect(any_large(x), 0))
    return map([](T y) { return same<T, float> ? (T)__builtin_sinf(y) : (T)__builtin_sin(y); }, x);
  auto a = quadrant(x);
  return pick(a, a.q);
}
WEFT_TV INLINE Vec<T, L, P> cos(Vec<T, L, P> x) {
  if (__builtin_expect(any_large(x), 0))
    return map([](T y) { return same<T, float> ? (T)__builtin_cosf(y) : (T)__builtin_cos(y); }, x);
  auto a = quadrant(x);
  return pick(a, a.q + 1);
}

// (tan(r) - r) / r^3 for z = r^2, |r| <= pi/4
WEFT_FV INLINE F32<L, P> tan_tail(F32<L, P> z) {
  return poly(z, 0.3333315551f, 0.1333883554f, 0.05340818316f, 0.02444147877f, 0.003101326758f, 0.009396633133f);
}
WEFT_FV INLINE F64<L, P> tan_tail(F64<L, P> z) {
  return poly(z, 0.3333333333333278, 0.13333333333414388, 0.05396825392677841, 0.021869489606397577,
              0.008863219200262574, 0.0035922887602052125, 0.001454759863355008, 0.0005950569214588678,
              0.0002224025064950156, 0.00013647929496233738, -2.632142817583195e-05, 8.939309662955974e-05,
              -4.484466524211292e-05, 2.0855600881943645e-05);
}
// As sine and cosine, but by r + low: the slope is up to 2.
WEFT_TV INLINE Vec<T, L, P> tan(Vec<T, L, P> x) {
  if (__builtin_expect(any_large(x), 0))
    return map([](T y) { return same<T, float> ? (T)__builtin_tanf(y) : (T)__builtin_tan(y); }, x);
  auto [q, n, near] = quadrant_of(x);
  const auto second = all(x, type_of<T>(HALF_PI[1], HALF_PI_OF_DOUBLE[1])), turned = n * second;
  auto r = near - turned, low = near - r - turned - fma(n, second, neg(turned));
  low = fma(n, -type_of<T>(HALF_PI[2], HALF_PI_OF_DOUBLE[2]), low);
  auto z = r * r;
  auto t = copysign(r + fma(r * z, tan_tail(z), fma(low, z, low)), r);  // -0 for -0
  return where(eq(q & 1, all(q, 0)), t, neg(reciprocal(t)));
}

// ---- inverse functions --------------------------------------------------------------------------

// (atan(t) - t) / t^3 for z = t^2, |t| <= tan(pi/8)
WEFT_FV INLINE F32<L, P> atan_tail(F32<L, P> z) {
  return poly(z, -0.3333333251f, 0.1999990433f, -0.1428201597f, 0.1104475287f, -0.08476409446f, 0.04743960073f);
}
WEFT_FV INLINE F64<L, P> atan_tail(F64<L, P> z) {
  return poly(z, -0.33333333333333326, 0.19999999999997095, -0.14285714285316417, 0.11111111083747945,
              -0.09090907986322455, 0.07692279229807449, -0.06666175515603227, 0.05876529765392091, -0.0521530596193281,
              0.04491249037156686, -0.033195329718166675, 0.014919188717666341);
}
WEFT_TV INLINE Vec<T, L, P> atan(Vec<T, L, P> x) {
  auto a = abs(x), one = all(x, 1), zero = all(x, 0);
  auto steep = gt(a, all(x, T(2.4142135623730950))), middle = gt(a, all(x, T(0.41421356237309505)));
  auto t = where(steep, neg(one), where(middle, a - one, a)) / where(steep, a, where(middle, a + one, one));
  auto base = where(steep, all(x, T(1.5707963267948966)), where(middle, all(x, T(0.78539816339744831)), zero));
  auto z = t * t;
  auto more = fma(base, type_of<T>(-2.782753e-8f, 3.898171832519376e-17), fma(t * z, atan_tail(z), t));
  return copysign(base + more, x);  // the base is rounded
}

// (asin(t) - t) / t^3 for z = t^2 <= 0.5625^2
WEFT_FV INLINE F32<L, P> asin_tail(F32<L, P> z) {
  return poly(z, 0.1666662991f, 0.07502160221f, 0.0442234166f, 0.03406530619f, 0.006587543059f, 0.04764227197f);
}
WEFT_FV INLINE F64<L, P> asin_tail(F64<L, P> z) {
  return poly(z, 0.16666666666670313, 0.07499999999110415, 0.04464285790088894, 0.030381911962768363,
              0.02237297803433281, 0.01733954463277957, 0.014108236896191808, 0.010479540560642151, 0.01533313397049812,
              -0.0115245868957488, 0.0546206137500518, -0.062494905710566526, 0.05582517974567403);
}
// asin(t) for t = |x| up to 0.5625, else of t = sqrt((1 - |x|) / 2), with which asin(|x|) = pi/2 - 2 asin(t).
template <class T, int L, int P> struct Arc { Vec<bool, L, P> large; Vec<T, L, P> of_t; };
WEFT_TV INLINE Arc<T, L, P> arc(Vec<T, L, P> x) {
  auto a = abs(x);
  auto large = gt(a, all(x, T(0.5625)));
  auto z = where(large, fma(a, T(-0.5), all(x, T(0.5))), a * a);
  auto t = where(large, sqrt(z), a);
  return {large, fma(t * z, asin_tail(z), t)};
}
// Half of pi, and what is left of it; pi is twice as much.
WEFT_TV INLINE Vec<T, L, P> from_right_angle(Vec<T, L, P> y) {
  return all(y, type_of<T>(1.57079637f, 1.5707963267948966)) - (y + type_of<T>(4.37113883e-8f, -6.123233995736766e-17));
}
WEFT_TV INLINE Vec<T, L, P> asin(Vec<T, L, P> x) {
  auto y = arc(x);
  return copysign(where(y.large, from_right_angle(y.of_t + y.of_t), y.of_t), x);
}
WEFT_TV INLINE Vec<T, L, P> acos(Vec<T, L, P> x) {
  auto y = arc(x);
  auto negative = lt(x, all(x, 0)), twice = y.of_t + y.of_t;
  auto small = from_right_angle(copysign(y.of_t, x)), half = from_right_angle(y.of_t);
  return where(y.large, where(negative, half + half, twice), small);
}

}  // namespace weft
