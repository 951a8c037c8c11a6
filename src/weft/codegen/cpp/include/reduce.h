// Reductions: an accumulator per lane, folded at the end.
//
//     auto acc = Sum::begin<float, L, P>();
//     vector_loop<S>(0, n, [&](int64_t x, auto m) { acc = Sum::next(acc, load<L, P>(in0 + x, m), m); });
//     Scalar<float> total = Sum::fold(acc);
#pragma once
#include "core.h"

namespace weft {

template <class T> constexpr T lowest() {
  if constexpr (same<T, float>) return -__builtin_inff();
  else if constexpr (same<T, double>) return -__builtin_inf();
  else if constexpr (T(-1) > T(0)) return 0;
  else return T(UIntLike<T>(1) << (8 * sizeof(T) - 1));
}
template <class T> constexpr T greatest() {
  if constexpr (is_float<T>) return -lowest<T>();
  else return T(~lowest<T>());
}

// The lanes of one part: halves are combined until a register of 16 bytes is left, then its lanes with those behind them.
template <class R, class T, int L> INLINE Scalar<T> fold_part(Vec<T, L, 1> x) {
  constexpr int bytes = sizeof(x);
  if constexpr (same<T, bool>) {  // any or all
    return scalar<bool>(R::template identity<T>() == 0 ? any_lane(x) : !any_lane(not_(x)));
  } else if constexpr (bytes > 16) {
    Vec<T, L / 2, 1> low, high;
    __builtin_memcpy(&low, &x, bytes / 2);
    __builtin_memcpy(&high, (const char*)&x + bytes / 2, bytes / 2);
    return fold_part<R>(R::combine(low, high));
  } else if constexpr (bytes == 16) {
    typedef Part<IntLike<Lane<T>>, L> I;
    UNROLL for (int w = L / 2; w; w /= 2) {
      I behind;
      UNROLL for (int i = 0; i < L; ++i) behind[i] = (i + w) % L;
      Vec<T, L, 1> y;
      y.p[0] = shuffle(x.p[0], x.p[0], behind);
      x = R::combine(x, y);
    }
    Scalar<T> r;
    r.p[0] = x.p[0][0];
    return r;
  } else {
    Scalar<T> t[L];
    __builtin_memcpy(t, &x, sizeof(x));
    UNROLL for (int w = L / 2; w; w /= 2)
      UNROLL for (int i = 0; i < w; ++i) t[i] = R::combine(t[i], t[i + w]);
    return t[0];
  }
}
template <class R, class T, int L, int P> INLINE Scalar<T> fold_lanes(Vec<T, L, P> a) {
  Vec<T, L, 1> x;
  x.p[0] = a.p[0];
  UNROLL for (int k = 1; k < P; ++k) {
    Vec<T, L, 1> y;
    y.p[0] = a.p[k];
    x = R::combine(x, y);
  }
  return fold_part<R>(x);
}

template <class R> struct Simple {
  template <class T, int L, int P> static INLINE Vec<T, L, P> begin() {
    return splat_lane<L, P, T>(R::template identity<T>());
  }
  template <class T, int L, int P, class N> static INLINE Vec<T, L, P> next(Vec<T, L, P> acc, Vec<T, L, P> x, N n) {
    return R::combine(acc, keep(x, begin<T, L, P>(), n));
  }
  template <class T, int L, int P> static INLINE Scalar<T> fold(Vec<T, L, P> a) { return fold_lanes<R>(a); }
};

struct Sum : Simple<Sum> {
  template <class T> static constexpr T identity() { return T(0); }
  template <class V> static INLINE V combine(V a, V b) { return add(a, b); }
};
struct Prod : Simple<Prod> {
  template <class T> static constexpr T identity() { return T(1); }
  template <class V> static INLINE V combine(V a, V b) { return mul(a, b); }
};
struct Max : Simple<Max> {
  template <class T> static constexpr Lane<T> identity() {
    if constexpr (same<T, bool>) return 0;
    else return lowest<T>();
  }
  template <class V> static INLINE V combine(V a, V b) { return maximum(a, b); }
};
struct Min : Simple<Min> {
  template <class T> static constexpr Lane<T> identity() {
    if constexpr (same<T, bool>) return -1;
    else return greatest<T>();
  }
  template <class V> static INLINE V combine(V a, V b) { return minimum(a, b); }
};
struct Any : Max {};
struct All : Min {};

// The position of the extreme value; NaN is the most extreme, the first of equals wins.
template <class T, class I, int L, int P> struct Best {
  Vec<T, L, P> value;
  Vec<I, L, P> position;
};
template <bool Greatest> struct Arg {
  template <class T, class I, int L, int P> static INLINE Best<T, I, L, P> begin() {
    typedef Lane<T> E;
    E worst;
    if constexpr (same<T, bool>) worst = Greatest ? 0 : -1;
    else worst = Greatest ? lowest<T>() : greatest<T>();
    return {splat_lane<L, P, T>(worst), splat_lane<L, P, I>(greatest<I>())};
  }
  template <class T, class I, int L, int P>
  static INLINE Best<T, I, L, P> combine(Best<T, I, L, P> a, Best<T, I, L, P> b) {
    auto better = Greatest ? gt(b.value, a.value) : lt(b.value, a.value);
    auto tie = eq(b.value, a.value);
    if constexpr (is_float<T>) {
      auto nan_a = isnan(a.value), nan_b = isnan(b.value);
      better = or_(better, and_(nan_b, not_(nan_a)));
      tie = or_(tie, and_(nan_a, nan_b));
    }
    auto take = or_(better, and_(tie, lt(b.position, a.position)));
    return {where(take, b.value, a.value), where(take, b.position, a.position)};
  }
  template <class T, class I, int L, int P, class N>
  static INLINE Best<T, I, L, P> next(Best<T, I, L, P> acc, Vec<T, L, P> x, Vec<I, L, P> position, N n) {
    auto none = begin<T, I, L, P>();
    return combine(acc, Best<T, I, L, P>{keep(x, none.value, n), keep(position, none.position, n)});
  }
  // The first position of the lanes' extreme value (NaN if there is one).
  template <class T, class I, int L, int P> static INLINE Scalar<int64_t> fold(Best<T, I, L, P> a) {
    typedef typename Choice<Greatest, Max, Min>::type Extreme;
    auto chosen = eq(a.value, splat<L, P>(fold_lanes<Extreme>(a.value)));
    if constexpr (is_float<T>) chosen = or_(chosen, isnan(a.value));
    return cast<int64_t>(fold_lanes<Min>(where(chosen, a.position, splat_lane<L, P, I>(greatest<I>()))));
  }
  template <class T, class I, int L, int P> static INLINE Vec<int64_t, L, P> positions(Best<T, I, L, P> a) {
    return cast<int64_t>(a.position);
  }
};
typedef Arg<true> ArgMax;
typedef Arg<false> ArgMin;

}  // namespace weft
