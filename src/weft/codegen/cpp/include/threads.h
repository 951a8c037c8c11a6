// Loops over vectors, and the division of a kernel's points among threads.
#pragma once
#include "indices.h"

namespace weft {

// f(x, n) for x in steps of S over [begin, end): n is Full{}, or the number of points left at the end.
template <int S, bool Whole = false, class F> INLINE void vector_loop(int64_t begin, int64_t end, F f) {
  int64_t x = begin;
  for (; Whole ? x < end : x + S <= end; x += S) f(x, Full{});
  if (!Whole && __builtin_expect(x < end, 0)) f(x, (int)(end - x));
}
// The same where the length is known to be a multiple of S.
template <int S, class F> INLINE void full_loop(int64_t begin, int64_t end, F f) {
  for (int64_t x = begin; x < end; x += S) f(x, Full{});
}

extern "C" int omp_get_max_threads();
extern "C" int omp_in_parallel();
extern "C" int omp_get_thread_num();

// What every kernel body gets: buffers, sizes, where it reports a bad index, and, for a reduction which threads
// share, memory for the partial results of each point's chunks.
struct Arguments {
  void* const* buffers;
  const int64_t* sizes;
  int error;
  void* scratch;
  int64_t chunks;
  int64_t part = 0, parts = 1;  // this thread's number, and how many there are (run_owned)
};
typedef void Range(Arguments& a, int64_t begin, int64_t end);

constexpr int64_t GRAIN = 32768;  // work (about one element) that pays for waking a thread

// The threads that the work of n points of `cost` each deserves.
static inline int64_t threads_for(int64_t n, int64_t cost) {
  const int64_t threads = n * cost / GRAIN;
  if (threads <= 1) return 1;
  return weft_min(weft_min(threads, n), omp_in_parallel() ? 1 : omp_get_max_threads());
}
// Runs `body` over [0, n), which the threads share.
static __attribute__((noinline, unused)) void run(Range* body, Arguments& a, int64_t n, int64_t cost) {
  if (n <= 0) return;
  const int64_t threads = threads_for(n, cost);
  if (threads <= 1) return body(a, 0, n);
#pragma omp parallel num_threads(threads)
  {
    int64_t t = omp_get_thread_num();
    body(a, n * t / threads, n * (t + 1) / threads);
  }
}
INLINE int run(Range* body, void* const* buffers, const int64_t* sizes, int64_t n, int64_t cost) {
  Arguments a{buffers, sizes, 0, nullptr, 1};
  run(body, a, n, cost);
  return a.error;
}
// Runs `body` over [0, n) on each thread: it does what is the thread's part.
static __attribute__((noinline, unused)) int run_owned(
    Range* body, void* const* buffers, const int64_t* sizes, int64_t n, int64_t cost) {
  const int64_t threads = threads_for(n, cost);
  if (threads <= 1) {
    Arguments a{buffers, sizes, 0, nullptr, 1};
    body(a, 0, n);
    return a.error;
  }
  int error = 0;
#pragma omp parallel num_threads(threads)
  {
    Arguments own{buffers, sizes, 0, nullptr, 1, omp_get_thread_num(), threads};
    body(own, 0, n);
    if (own.error) __atomic_store_n(&error, own.error, __ATOMIC_RELAXED);
  }
  return error;
}
// Where a thread's part of n rows begins (edge 0), and ends (edge 1).
INLINE int64_t part_of(const Arguments& a, int64_t n, int edge) { return n * (a.part + edge) / a.parts; }

}  // namespace weft
