// Vectors, masks and arithmetic of generated kernels.
//
// A value is Vec<T, L, P>: P parts of L lanes each. All vectors of one kernel have the same L and P, so that
// part k of every operand holds the same points whatever its element type; L is chosen so that the widest type
// of the kernel fills one machine register. P > 1 gives independent chains to hide latency. Values which do
// not vary along the vectorised loop are scalars: Vec<T, 1, 1>. A bool is a mask: an integer that is 0 or -1, as wide as
// the kernel's widest type (with AVX-512, and in scalars: an int32).
#pragma once

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT64_TYPE__ uint64_t;

#define INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define LAMBDA __attribute__((always_inline))
#define PARTS UNROLL for (int k = 0; k < P; ++k)

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define WEFT_AVX512 1
#elif defined(__AVX2__) && defined(__FMA__)
#define WEFT_AVX2 1
#endif

namespace weft {

#if defined(WEFT_AVX512)
constexpr int REGISTER_BYTES = 64;
#elif defined(WEFT_AVX2)
constexpr int REGISTER_BYTES = 32;
#else
constexpr int REGISTER_BYTES = 16;
#endif

struct half { uint16_t bits; };
struct bfloat16 { uint16_t bits; };
struct Full {};  // all lanes are inside the loop

// ---- types --------------------------------------------------------------------------------------

template <class T> struct LaneOf { typedef T type; };  // what a lane of compute type T is
template <> struct LaneOf<bool> { typedef int32_t type; };
template <class T> using Lane = typename LaneOf<T>::type;  // of a scalar

template <class T> struct ComputeOf { typedef T type; };  // what a value of memory type T becomes
template <> struct ComputeOf<half> { typedef float type; };
template <> struct ComputeOf<bfloat16> { typedef float type; };
template <class T> using Compute = typename ComputeOf<T>::type;

template <class T, int L> struct PartOf { typedef T type __attribute__((vector_size(sizeof(T) * L))); };
template <class T> struct PartOf<T, 1> { typedef T type; };
template <class T, int L> using Part = typename PartOf<T, L>::type;

template <int Size> struct IntOf;
template <> struct IntOf<1> { typedef int8_t type; typedef uint8_t utype; };
template <> struct IntOf<2> { typedef int16_t type; typedef uint16_t utype; };
template <> struct IntOf<4> { typedef int32_t type; typedef uint32_t utype; };
template <> struct IntOf<8> { typedef int64_t type; typedef uint64_t utype; };
template <class T> using IntLike = typename IntOf<sizeof(T)>::type;
template <class T> using UIntLike = typename IntOf<sizeof(T)>::utype;

#ifdef WEFT_AVX512
template <int L> using MaskLane = int32_t;
#else
template <int L> using MaskLane =
    typename IntOf<(L == 1 ? 4 : REGISTER_BYTES / L < 1 ? 1 : REGISTER_BYTES / L > 8 ? 8 : REGISTER_BYTES / L)>::type;
#endif
template <int L> using Mask = Part<MaskLane<L>, L>;
template <class T, int L> struct LaneAmong { typedef T type; };  // one lane of L
template <int L> struct LaneAmong<bool, L> { typedef MaskLane<L> type; };

template <class T, int L, int P> struct Vec {
  Part<typename LaneAmong<T, L>::type, L> p[P];
};
template <class T> using Scalar = Vec<T, 1, 1>;

template <bool First, class A, class B> struct Choice { typedef A type; };
template <class A, class B> struct Choice<false, A, B> { typedef B type; };
template <class T> struct Bare { typedef T type; };
template <class T> struct Bare<T&> { typedef T type; };
template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;
template <class T> constexpr bool is_float = same<T, float> || same<T, double>;

template <class To, class From> INLINE To bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "bits: sizes differ");
  return __builtin_bit_cast(To, x);
}

// Lane i is x[at[i]], or y[at[i] - N] from N on.
template <class V, class I> INLINE V shuffle(V x, V y, I at) {
#ifdef __clang__
  V r;
  constexpr int N = sizeof(V) / sizeof(x[0]);
  UNROLL for (int i = 0; i < N; ++i) r[i] = at[i] < N ? x[at[i]] : y[at[i] - N];
  return r;
#else
  return __builtin_shuffle(x, y, at);
#endif
}

// Value conversion of one part. Instructions are named where GCC takes each lane, or each half, by itself.
template <class To, int L, class From> INLINE Part<To, L> convert(From x);

template <class V> INLINE auto in_register(V x) {  // vectors of less than 16 bytes at the beginning of one
  typedef int64_t Register __attribute__((vector_size(16)));
  if constexpr (sizeof(V) >= 16) return x;
  else return Register{(int64_t)bits<typename IntOf<sizeof(V)>::utype>(x)};
}
template <class V, class R> INLINE V from_register(R r) {
  if constexpr (sizeof(V) >= 16) return bits<V>(r);
  else return bits<V>((typename IntOf<sizeof(V)>::utype)bits<Part<int64_t, 2>>(r)[0]);
}
template <int From, int To>
constexpr bool can_widen = From < To && To >= 16 && To <= REGISTER_BYTES && REGISTER_BYTES >= 32;
template <int From, int To> constexpr bool can_narrow = From > To && From >= 16 && REGISTER_BYTES == 64;

#define WEFT_CONVERT(IS, INSTRUCTION) if constexpr (IS) asm(INSTRUCTION " %1, %0" : "=v"(r) : "v"(in_register(x))); else
#define WEFT_WIDEN(FROM, TO, SUFFIX)                                                        \
  WEFT_CONVERT(sizeof(E) == FROM && sizeof(To) == TO && (E)-1 < 0, "vpmovsx" SUFFIX)        \
  WEFT_CONVERT(sizeof(E) == FROM && sizeof(To) == TO, "vpmovzx" SUFFIX)
#define WEFT_NARROW(FROM, TO, SUFFIX) WEFT_CONVERT(sizeof(E) == FROM && sizeof(To) == TO, "vpmov" SUFFIX)
template <class To, class E, int L> INLINE Part<To, L> widen(Part<E, L> x) {
  Part<To, L> r;
  WEFT_WIDEN(1, 2, "bw") WEFT_WIDEN(1, 4, "bd") WEFT_WIDEN(1, 8, "bq") WEFT_WIDEN(2, 4, "wd") WEFT_WIDEN(2, 8, "wq")
  WEFT_WIDEN(4, 8, "dq") static_assert(sizeof(E) < sizeof(To));
  return r;
}
template <class To, class E, int L> INLINE Part<To, L> narrow(Part<E, L> x) {
  Part<typename IntOf<sizeof(To)>::type, (sizeof(To) * L < 16 ? 16 / sizeof(To) : L)> r;
  WEFT_NARROW(8, 4, "qd") WEFT_NARROW(8, 2, "qw") WEFT_NARROW(8, 1, "qb") WEFT_NARROW(4, 2, "dw")
  WEFT_NARROW(4, 1, "db") WEFT_NARROW(2, 1, "wb") static_assert(sizeof(E) > sizeof(To));
  return from_register<Part<To, L>>(r);
}
// Four integers of 8 bytes: the lower halves of their lanes.
template <class To, class E> INLINE Part<To, 4> narrow(Part<E, 4> x) {
  typedef Part<int32_t, 8> Words;
  const Words words = shuffle(bits<Words>(x), bits<Words>(x), Words{0, 2, 4, 6, 0, 2, 4, 6});
  Part<int32_t, 4> r;
  __builtin_memcpy(&r, &words, sizeof(r));
  if constexpr (sizeof(To) == 4) return bits<Part<To, 4>>(r);
  else return convert<To, 4>(r);
}
template <class To, class E, int L> INLINE Part<To, L> to_eight_bytes(Part<E, L> x) {
  Part<To, L> r;
  WEFT_CONVERT((same<E, float> && same<To, double>), "vcvtps2pd")
  WEFT_CONVERT((same<E, float>), "vcvttps2qq")
  WEFT_CONVERT((same<To, double>), "vcvtdq2pd") static_assert(same<E, int32_t>);
  return r;
}

template <class To, int L, class From> INLINE Part<To, L> convert(From x) {
  if constexpr (L == 1) return (To)x;
  else {
    typedef typename Bare<decltype(x[0])>::type E;
    constexpr int from = sizeof(From), to = sizeof(To) * L;
    if constexpr (is_float<E> || is_float<To>) {
      if constexpr (can_widen<from, to> && to == 64 && (same<E, float> || same<E, int32_t>)) return to_eight_bytes<To, E, L>(x);
      else return __builtin_convertvector(x, Part<To, L>);
    } else if constexpr (can_widen<from, to>) return widen<To, E, L>(x);
    else if constexpr (can_narrow<from, to>) return narrow<To, E, L>(x);
    else if constexpr (REGISTER_BYTES == 32 && from == 32 && sizeof(E) == 8 && to <= 16) return narrow<To, E>(x);
    else if constexpr (from >= 4 * to) return convert<To, L>(convert<typename IntOf<sizeof(E) / 2>::type, L>(x));
    else return __builtin_convertvector(x, Part<To, L>);
  }
}

template <int L, int P, class T> INLINE Vec<T, L, P> splat_lane(Lane<T> x) {
  Vec<T, L, P> r;
  typedef typename LaneAmong<T, L>::type E;
  PARTS r.p[k] = (E)x - Part<E, L>{};  // x - 0 keeps the sign of zero and NaN
  return r;
}
template <int L, int P, class T> INLINE Vec<T, L, P> splat(Scalar<T> x) {
  return splat_lane<L, P, T>(x.p[0]);
}
template <class T> INLINE Scalar<T> scalar(T x) {
  Scalar<T> r;
  r.p[0] = x;
  return r;
}
template <> INLINE Scalar<bool> scalar(bool x) {
  Scalar<bool> r;
  r.p[0] = -(int32_t)x;
  return r;
}
template <class T> INLINE T value(Scalar<T> x) { return (T)x.p[0]; }
INLINE bool value(Scalar<bool> x) { return x.p[0] != 0; }

INLINE Scalar<int32_t> limited(Scalar<int64_t> x) {  // to 32 bits
  constexpr int64_t most = 0x7fffffff;
  return scalar<int32_t>((int32_t)(x.p[0] > most ? most : x.p[0] < -most - 1 ? -most - 1 : x.p[0]));
}

template <class T, int L, int P> INLINE Lane<T> lane(const Vec<T, L, P>& x, int i) {
  if constexpr (L == 1) return x.p[i];
  else return x.p[i / L][i % L];
}

// A vector from a function of the lane number.
template <class T, int L, int P, class F> INLINE Vec<T, L, P> make(F f) {
  Vec<T, L, P> r;
  typename LaneAmong<T, L>::type t[L * P];
  UNROLL for (int i = 0; i < L * P; ++i) t[i] = f(i);
  __builtin_memcpy(&r, t, sizeof(r));
  return r;
}
template <class T, int L, int P> INLINE Vec<T, L, P> iota() {
  return make<T, L, P>([](int i) { return (T)i; });
}

// start, start + step, ...
template <int L, int P, class T> INLINE Vec<T, L, P> steps(Scalar<T> start, int64_t step) {
  Vec<T, L, P> r;
  PARTS {
    Part<T, L> lanes = iota<T, L, 1>().p[0] + (T)(k * L);
    r.p[k] = lanes * (T)step + start.p[0];
  }
  return r;
}

// Lane by lane: for operators that have no vector form.
template <class T, int L, int P, class F> INLINE Vec<T, L, P> map(F f, Vec<T, L, P> a) {
  typename LaneAmong<T, L>::type t[L * P];
  __builtin_memcpy(t, &a, sizeof(a));
  for (int i = 0; i < L * P; ++i) t[i] = f(t[i]);
  __builtin_memcpy(&a, t, sizeof(a));
  return a;
}
template <class T, int L, int P, class F> INLINE Vec<T, L, P> map(F f, Vec<T, L, P> a, Vec<T, L, P> b) {
  typename LaneAmong<T, L>::type t[L * P], u[L * P];
  __builtin_memcpy(t, &a, sizeof(a));
  __builtin_memcpy(u, &b, sizeof(b));
  for (int i = 0; i < L * P; ++i) t[i] = f(t[i], u[i]);
  __builtin_memcpy(&a, t, sizeof(a));
  return a;
}

// ---- masks and choice ---------------------------------------------------------------------------

// The mask of a comparison's native result (a bool, or integers as wide as the operands).
template <int L, class C> INLINE Mask<L> mask_part(C c) {
  if constexpr (L == 1) return -(int32_t)c;
#ifdef WEFT_AVX512
  else return __builtin_convertvector(c, Mask<L>);
#else
  else return convert<MaskLane<L>, L>(c);
#endif
}
// A mask as wide as T.
template <class T, int L> INLINE Part<IntLike<T>, L> wide_mask(Mask<L> m) {
  return convert<IntLike<T>, L>(m);
}
template <class T, int L> INLINE Part<T, L> select_part(Mask<L> m, Part<T, L> a, Part<T, L> b) {
  if constexpr (L == 1) return m ? a : b;
#ifdef WEFT_AVX512
  else if constexpr (sizeof(T) == 8 && L >= 4) {  // GCC converts such masks by many instructions
    uint8_t lanes;
    asm("vpmovd2m %1, %0" : "=Yk"(lanes) : "v"(m));
    asm("vblendmpd %1, %2, %0%{%3%}" : "=v"(a) : "v"(a), "v"(b), "Yk"(lanes));
    return a;
  }
#endif
  else return wide_mask<T, L>(m) != 0 ? a : b;
}
template <class T, int L, int P>
INLINE Vec<T, L, P> where(Vec<bool, L, P> m, Vec<T, L, P> a, Vec<T, L, P> b) {
  Vec<T, L, P> r;
  PARTS r.p[k] = select_part<typename LaneAmong<T, L>::type, L>(m.p[k], a.p[k], b.p[k]);
  return r;
}
// Lanes that are inside, of a tail of n points.
template <int L, int P> INLINE Vec<bool, L, P> inside(int n) {
  Vec<bool, L, P> r;
  PARTS {
    const int m = n - k * L;
    const MaskLane<L> count = m < 0 ? 0 : m > L ? L : m;
    if constexpr (L == 1) r.p[k] = -(int32_t)(count > 0);
    else r.p[k] = iota<MaskLane<L>, L, 1>().p[0] < count - Mask<L>{};
  }
  return r;
}
template <class T, int L, int P> INLINE Vec<T, L, P> keep(Vec<T, L, P> x, Vec<T, L, P>, Full) { return x; }
template <class T, int L, int P> INLINE Vec<T, L, P> keep(Vec<T, L, P> x, Vec<T, L, P> other, int n) {
  return where(inside<L, P>(n), x, other);
}
template <int L, int P> INLINE bool any_lane(Vec<bool, L, P> m) {
  if constexpr (L == 1) return m.p[0] != 0;
  else {
    Mask<L> joined = m.p[0];
    UNROLL for (int k = 1; k < P; ++k) joined |= m.p[k];
#if defined(WEFT_AVX512) || defined(WEFT_AVX2)
    if constexpr (sizeof(joined) >= 16) {
      bool found;
#ifdef WEFT_AVX512
      typename IntOf<(L > 8 ? 2 : 1)>::utype lanes;
      asm("vpmovd2m %1, %0" : "=Yk"(lanes) : "v"(joined));
      found = lanes != 0;
#else
      asm("vptest %1, %1" : "=@ccnz"(found) : "x"(joined));
#endif
      return found;
    }
#endif
    constexpr int count = (sizeof(joined) + 7) / 8;
    int64_t words[count] = {}, r = 0;
    __builtin_memcpy(words, &joined, sizeof(joined));
    UNROLL for (int i = 0; i < count; ++i) r |= words[i];
    return r != 0;
  }
}

// ---- arithmetic ---------------------------------------------------------------------------------

#define WEFT_BINARY(NAME, EXPR)                                                        \
  template <class T, int L, int P> INLINE Vec<T, L, P> NAME(Vec<T, L, P> a, Vec<T, L, P> b) { \
    Vec<T, L, P> r;                                                                    \
    PARTS { auto x = a.p[k], y = b.p[k]; r.p[k] = EXPR; }                              \
    return r;                                                                          \
  }
#define WEFT_UNARY(NAME, EXPR)                                                         \
  template <class T, int L, int P> INLINE Vec<T, L, P> NAME(Vec<T, L, P> a) {          \
    Vec<T, L, P> r;                                                                    \
    PARTS { auto x = a.p[k]; r.p[k] = EXPR; }                                          \
    return r;                                                                          \
  }
#define WEFT_COMPARE(NAME, EXPR)                                                       \
  template <class T, int L, int P> INLINE Vec<bool, L, P> NAME(Vec<T, L, P> a, Vec<T, L, P> b) { \
    Vec<bool, L, P> r;                                                                 \
    PARTS { auto x = a.p[k], y = b.p[k]; r.p[k] = mask_part<L>(EXPR); }                \
    return r;                                                                          \
  }

WEFT_BINARY(add, x + y)
WEFT_BINARY(sub, x - y)
WEFT_BINARY(mul, x * y)
WEFT_UNARY(neg, -x)
WEFT_COMPARE(eq, x == y)
WEFT_COMPARE(ne, x != y)
WEFT_COMPARE(lt, x < y)
WEFT_COMPARE(le, x <= y)
// A true bool is -1: the order of masks is the opposite of the order of their lanes.
template <int L, int P> INLINE Vec<bool, L, P> lt(Vec<bool, L, P> a, Vec<bool, L, P> b) {
  typedef Vec<MaskLane<L>, L, P> I;
  return lt(bits<I>(b), bits<I>(a));
}
template <int L, int P> INLINE Vec<bool, L, P> le(Vec<bool, L, P> a, Vec<bool, L, P> b) {
  typedef Vec<MaskLane<L>, L, P> I;
  return le(bits<I>(b), bits<I>(a));
}
template <class V> INLINE auto gt(V a, V b) { return lt(b, a); }
template <class V> INLINE auto ge(V a, V b) { return le(b, a); }
WEFT_BINARY(and_, x & y)
WEFT_BINARY(or_, x | y)
WEFT_BINARY(xor_, x ^ y)
WEFT_UNARY(not_, ~x)

template <class T, int L, int P> INLINE Vec<bool, L, P> isnan(Vec<T, L, P> a) { return ne(a, a); }

// Greater / smaller one, x if both are equal (0 and -0); NaN if either is NaN: the machine's instruction, with y before x,
// gives x then, so y is put back where it is NaN.
// In assembler: GCC takes seconds over 20 such choices in a row, and minutes over 50.
#if defined(WEFT_AVX512)
template <class T, int Bytes> constexpr bool has_extremes = is_float<T> && Bytes >= 16 && Bytes <= 64;
#define WEFT_EXTREME_ASM(NAME, S) \
  uint16_t nan; \
  asm("vcmpunord" S " %3, %3, %1\n\tv" NAME S " %2, %3, %0\n\tvmova" S " %3, %0%{%1%}" \
      : "=&v"(m), "=&Yk"(nan) : "v"(x), "v"(y))
#elif defined(WEFT_AVX2)
template <class T, int Bytes> constexpr bool has_extremes = is_float<T> && Bytes >= 16 && Bytes <= 32;
#define WEFT_EXTREME_ASM(NAME, S) \
  auto nan = x; \
  asm("vcmpunord" S " %3, %3, %1\n\tv" NAME S " %2, %3, %0\n\tvblendv" S " %1, %3, %0, %0" \
      : "=&x"(m), "=&x"(nan) : "x"(x), "x"(y))
#else
template <class T, int Bytes> constexpr bool has_extremes = false;
#define WEFT_EXTREME_ASM(NAME, S)
#endif
#define WEFT_EXTREME(FUNCTION, NAME, COMPARE)                                                            \
  template <class T, int L, int P> INLINE Vec<T, L, P> FUNCTION(Vec<T, L, P> a, Vec<T, L, P> b) {        \
    Vec<T, L, P> r;                                                                                      \
    PARTS {                                                                                              \
      auto x = a.p[k], y = b.p[k], m = x;                                                                \
      if constexpr (has_extremes<T, sizeof(x)> && same<T, float>) { WEFT_EXTREME_ASM(NAME, "ps"); }      \
      else if constexpr (has_extremes<T, sizeof(x)>) { WEFT_EXTREME_ASM(NAME, "pd"); }                   \
      else {                                                                                             \
        m = y COMPARE x ? y : x;                                                                         \
        if constexpr (is_float<T>) m = y == y ? m : y;                                                   \
      }                                                                                                  \
      r.p[k] = m;                                                                                        \
    }                                                                                                    \
    return r;                                                                                            \
  }
WEFT_EXTREME(maximum, "max", >)
WEFT_EXTREME(minimum, "min", <)
template <int L, int P> INLINE Vec<bool, L, P> maximum(Vec<bool, L, P> a, Vec<bool, L, P> b) { return or_(a, b); }
template <int L, int P> INLINE Vec<bool, L, P> minimum(Vec<bool, L, P> a, Vec<bool, L, P> b) { return and_(a, b); }

template <class T, int L, int P> INLINE Vec<T, L, P> div(Vec<T, L, P> a, Vec<T, L, P> b) {
  Vec<T, L, P> r;
  PARTS r.p[k] = a.p[k] / b.p[k];
  return r;
}

// A divisor that is the same in all points. Powers of two whose reciprocal is a normal number are multiplied by,
// which is exact and several times as fast.
template <class T> struct Divisor {
  Scalar<T> value, reciprocal;
  bool is_exact;
};
template <class T> INLINE Divisor<T> divisor(Scalar<T> a) {
  constexpr int digits = sizeof(T) == 4 ? 23 : 52, most = sizeof(T) == 4 ? 253 : 2045;
  typedef UIntLike<T> U;
  const U pattern = bits<U>(a.p[0]);
  const int exponent = (int)(pattern >> digits) & (most + 2);
  Divisor<T> r{a, {}, (pattern << (8 * sizeof(T) - digits)) == 0 && exponent >= 1 && exponent <= most};
  r.reciprocal.p[0] = r.is_exact ? 1 / a.p[0] : 0;
  return r;
}
template <class T, int L, int P> INLINE Vec<T, L, P> div(Vec<T, L, P> a, Divisor<T> d) {
  return d.is_exact ? mul(a, splat<L, P>(d.reciprocal)) : div(a, splat<L, P>(d.value));
}
template <class T, int L, int P> INLINE Vec<T, L, P> reciprocal(Vec<T, L, P> a) {
  return div(splat_lane<L, P, T>(1), a);
}
template <class T, int L, int P> INLINE Vec<T, L, P> abs(Vec<T, L, P> a) {
  Vec<T, L, P> r;
  PARTS {
    auto x = a.p[k];
    if constexpr (is_float<T>) {
      typedef Part<IntLike<T>, L> I;
      constexpr IntLike<T> magnitude = (IntLike<T>)(~(UIntLike<T>)0 >> 1);
      r.p[k] = bits<Part<T, L>>(bits<I>(x) & (magnitude - I{}));
    } else r.p[k] = x < 0 ? -x : x;
  }
  return r;
}

// x * y + z, rounded once where the machine can. Builtins, so that the compiler picks the operand that the
// instruction overwrites; GCC and clang know the same names.
template <class V> INLINE V fma_register(V x, V y, V z) {
#if defined(WEFT_AVX512) && defined(__has_builtin) && __has_builtin(__builtin_ia32_vfmaddps512_mask)
  if constexpr (same<V, Part<float, 16>>) return __builtin_ia32_vfmaddps512_mask(x, y, z, -1, 4);
  if constexpr (same<V, Part<double, 8>>) return __builtin_ia32_vfmaddpd512_mask(x, y, z, -1, 4);
#endif
#if defined(WEFT_AVX512) || defined(WEFT_AVX2)
  if constexpr (same<decltype(x[0] + x[0]), float>) asm("vfmadd213ps %2, %1, %0" : "+v"(y) : "v"(x), "v"(z));
  else asm("vfmadd213pd %2, %1, %0" : "+v"(y) : "v"(x), "v"(z));
  return y;
#else
  return x * y + z;
#endif
}
template <class T, int L, int P> INLINE Vec<T, L, P> fma(Vec<T, L, P> a, Vec<T, L, P> b, Vec<T, L, P> c) {
  Vec<T, L, P> r;
  PARTS {
    auto x = a.p[k], y = b.p[k], z = c.p[k];
#if defined(WEFT_AVX512) || defined(WEFT_AVX2)
    if constexpr (L == 1 && same<T, float>) r.p[k] = __builtin_fmaf(x, y, z);
    else if constexpr (L == 1) r.p[k] = __builtin_fma(x, y, z);
    else if constexpr (sizeof(x) >= 16 && sizeof(x) <= 64) r.p[k] = fma_register(x, y, z);
    else
#endif
      r.p[k] = x * y + z;
  }
  return r;
}

// The same of the loop IR: where the machine rounds the product, too, that one may overflow, which the sum need not.
template <class T, int L, int P> INLINE Vec<T, L, P> fused(Vec<T, L, P> a, Vec<T, L, P> b, Vec<T, L, P> c) {
  auto r = fma(a, b, c);
#if !defined(WEFT_AVX512) && !defined(WEFT_AVX2)
  const auto most = splat_lane<L, P, T>(sizeof(T) == 4 ? T(__FLT_MAX__) : T(__DBL_MAX__));
  if (any_lane(not_(le(abs(r), most)))) {
    T x[L * P], y[L * P], z[L * P];
    __builtin_memcpy(x, &a, sizeof(a));
    __builtin_memcpy(y, &b, sizeof(b));
    __builtin_memcpy(z, &c, sizeof(c));
    for (int i = 0; i < L * P; ++i) z[i] = sizeof(T) == 4 ? T(__builtin_fmaf(x[i], y[i], z[i])) : T(__builtin_fma(x[i], y[i], z[i]));
    __builtin_memcpy(&r, z, sizeof(r));
  }
#endif
  return r;
}

// ---- conversion of values -----------------------------------------------------------------------

template <int L, int P> INLINE Vec<double, L, P> double_of(Vec<int64_t, L, P> a) {
  Vec<double, L, P> r;
  PARTS r.p[k] = bits<Part<double, L>>(a.p[k]);
  return r;
}

template <class To, class From, int L, int P> INLINE Vec<To, L, P> cast(Vec<From, L, P> a) {
  Vec<To, L, P> r;
  if constexpr (same<To, From>) return a;
  else if constexpr (same<To, bool>) {
    PARTS r.p[k] = mask_part<L>(a.p[k] != 0);
  } else if constexpr (same<From, bool> && is_float<To> && L > 1) {
    typedef IntLike<To> I;
    PARTS r.p[k] = bits<Part<To, L>>(wide_mask<To, L>(a.p[k]) & (bits<I>(To(1)) - Part<I, L>{}));
  } else if constexpr (same<From, bool>) {
    PARTS r.p[k] = convert<To, L>(-a.p[k]);
  } else if constexpr (is_float<From> && sizeof(To) < 4) {  // through int32: that has instructions
    PARTS r.p[k] = convert<To, L>(convert<int32_t, L>(a.p[k]));
  } else if constexpr (is_float<To> && sizeof(From) < 4) {
    PARTS r.p[k] = convert<To, L>(convert<int32_t, L>(a.p[k]));
  } else {
    PARTS r.p[k] = convert<To, L>(a.p[k]);
  }
  return r;
}

}  // namespace weft
