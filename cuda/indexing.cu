#include <bit>

#include "weft/core/kernels/indexing.h"
#include "weft/cuda/index_fault.h"
#include "weft/cuda/math.h"
#include "weft/cuda/reduce.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 256;

__device__ inline std::int64_t thread_number() {
  return std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
}
dim3 threads_for(std::int64_t n) { return grid_of(blocks_for(n, kThreads)); }

// i = quotient * size + rest. 32-bit division is several times faster.
struct Quotient {
  std::int64_t quotient, rest;
  __device__ Quotient(std::int64_t i, std::int64_t size) {
    if (((i | size) >> 32) == 0) {
      const std::uint32_t q = static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(size);
      quotient = q;
    } else {
      quotient = i / size;
    }
    rest = i - quotient * size;
  }
};

__global__ void __launch_bounds__(kThreads)
    indexing_find_bad_kernel(std::int64_t n, Indices index, std::int64_t limit, const char* op,
                             const char* label, detail::IndexFault* fault) {
  const std::int64_t i = thread_number();
  if (i >= n || (index[i] >= 0 && index[i] < limit)) return;
  report(fault, {.set = 0,
                 .may_ignore = false,
                 .op = op,
                 .label = label,
                 .limit = limit,
                 .value = index[i],
                 .ignored = 0});
}

// Rows of `inner` words; only the element size matters.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    indexing_select_kernel(std::int64_t total, std::int64_t n, std::int64_t length,
                           std::int64_t inner, const Word* x, Indices index, Word* out) {
  const std::int64_t at = thread_number();
  if (at >= total) return;
  const Quotient row(at, inner), place(row.quotient, n);  // place: which o, which j
  const std::int64_t id = index[place.rest];
  if (id >= 0 && id < length) out[at] = x[(place.quotient * length + id) * inner + row.rest];
}

template <class Word>
__global__ void __launch_bounds__(kThreads)
    indexing_gather_kernel(std::int64_t total, std::int64_t n, std::int64_t length,
                           std::int64_t inner, const Word* x, Indices index, Word* out) {
  const std::int64_t at = thread_number();
  if (at >= total) return;
  const Quotient row(at, inner), place(row.quotient, n);
  const std::int64_t id = index[at];
  if (id >= 0 && id < length) out[at] = x[(place.quotient * length + id) * inner + row.rest];
}

// Each thread owns a column (o, i) and adds its terms in ascending j.
template <class T>
__global__ void __launch_bounds__(kThreads)
    indexing_scatter_add_kernel(std::int64_t columns, std::int64_t n, std::int64_t length,
                                std::int64_t inner, const T* source, Indices index, T* out) {
  using A = Compute<T>;
  const std::int64_t column = thread_number();
  if (column >= columns) return;
  const Quotient c(column, inner);
  const std::int64_t from = c.quotient * n * inner + c.rest;
  T* const to = out + c.quotient * length * inner + c.rest;
  for (std::int64_t j = 0; j < n; ++j) {
    const std::int64_t id = index[from + j * inner];
    if (id < 0 || id >= length) continue;
    T& sum = to[id * inner];
    sum = narrow<T>(static_cast<A>(static_cast<A>(sum) + static_cast<A>(source[from + j * inner])));
  }
}

// The last axis: each warp owns a row o and processes 32 terms at a time. Among lanes with the same
// index, the first one computes the sum.
template <class T>
__global__ void __launch_bounds__(kThreads)
    indexing_scatter_add_row_kernel(std::int64_t rows, std::int64_t n, std::int64_t length,
                                    const T* source, Indices index, T* out) {
  using A = Compute<T>;
  const std::int64_t o = thread_number() / kWarp;
  if (o >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  T* const to = out + o * length;
  for (std::int64_t first = 0; first < n; first += kWarp) {
    const std::int64_t j = first + lane;
    const std::int64_t id = j < n ? index[o * n + j] : -1;
    const A x = j < n ? static_cast<A>(source[o * n + j]) : A(0);
    const unsigned alike = __match_any_sync(kAllLanes, id);
    const bool sums = id >= 0 && id < length && (alike & ((1u << lane) - 1)) == 0;
    T sum = sums ? to[id] : T(A(0));
    unsigned rest = sums ? alike : 0;
    while (__any_sync(kAllLanes, rest != 0)) {
      const A term = __shfl_sync(kAllLanes, x, rest ? __ffs(static_cast<int>(rest)) - 1 : lane);
      if (rest) sum = narrow<T>(static_cast<A>(static_cast<A>(sum) + term));
      rest &= rest - 1;
    }
    if (sums) to[id] = sum;
    __syncwarp();
  }
}

// The same walk as scatter_add; of several terms of one place the last is kept.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    indexing_scatter_kernel(std::int64_t columns, std::int64_t n, std::int64_t length,
                            std::int64_t inner, const Word* source, Indices index, Word* out) {
  const std::int64_t column = thread_number();
  if (column >= columns) return;
  const Quotient c(column, inner);
  const std::int64_t from = c.quotient * n * inner + c.rest;
  Word* const to = out + c.quotient * length * inner + c.rest;
  for (std::int64_t j = 0; j < n; ++j) {
    const std::int64_t id = index[from + j * inner];
    if (id >= 0 && id < length) to[id * inner] = source[from + j * inner];
  }
}

template <class Word>
__global__ void __launch_bounds__(kThreads)
    indexing_scatter_row_kernel(std::int64_t rows, std::int64_t n, std::int64_t length,
                                const Word* source, Indices index, Word* out) {
  const std::int64_t o = thread_number() / kWarp;
  if (o >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (std::int64_t first = 0; first < n; first += kWarp) {
    const std::int64_t j = first + lane;
    const std::int64_t id = j < n ? index[o * n + j] : -1;
    const unsigned alike = __match_any_sync(kAllLanes, id);
    if (id >= 0 && id < length && alike >> lane == 1) out[o * length + id] = source[o * n + j];
    __syncwarp();
  }
}

template <class Word>
__global__ void __launch_bounds__(kThreads)
    indexing_one_hot_kernel(std::int64_t n, std::int64_t classes, Indices ids, Word one,
                            Word* out) {
  const std::int64_t i = thread_number();
  if (i >= n) return;
  if (const std::int64_t id = ids[i]; id >= 0 && id < classes) out[i * classes + id] = one;
}

template <class Word>
__global__ void __launch_bounds__(kThreads)
    indexing_tril_kernel(std::int64_t total, std::int64_t rows, std::int64_t columns,
                         std::int64_t diagonal, const Word* x, Word* out) {
  const std::int64_t at = thread_number();
  if (at >= total) return;
  const Quotient place(at, columns), row(place.quotient, rows);
  out[at] = place.rest - row.rest <= diagonal ? x[at] : Word{};
}

struct alignas(16) Wide {
  std::uint64_t half[2];
};

// Calls f(Word{}) with an unsigned type of this many bytes.
template <class F>
void with_word(std::size_t bytes, F f) {
  switch (bytes) {
    case 1:
      return f(std::uint8_t{});
    case 2:
      return f(std::uint16_t{});
    case 4:
      return f(std::uint32_t{});
    case 8:
      return f(std::uint64_t{});
    default:
      return f(Wide{});
  }
}

}  // namespace

void find_bad_index(const Tensor& index, const char* op, const char* label, std::int64_t limit,
                    const Tensor&) {
  launch(indexing_find_bad_kernel, threads_for(index.numel()), kThreads, 0, index.numel(),
         Indices(index), limit, op, label, detail::index_fault(index.device()));
}

void index_select(const Tensor& x, const Tensor& index, int dim, const Tensor& out) {
  const AxisExtent from(x, dim), to(out, dim);
  std::size_t word = size_of(x.dtype());
  auto inner = from.inner;
  const auto aligned = [](const Tensor& t) {
    return reinterpret_cast<std::uintptr_t>(t.raw()) % sizeof(Wide) == 0;
  };
  const std::int64_t row_bytes = inner * static_cast<std::int64_t>(word);
  if (row_bytes % std::int64_t{sizeof(Wide)} == 0 && aligned(x) && aligned(out)) {
    word = sizeof(Wide);
    inner = row_bytes / std::int64_t{sizeof(Wide)};
  }
  const std::int64_t total = to.outer * to.length * inner;
  with_word(word, [&]<class Word>(Word) {
    launch(indexing_select_kernel<Word>, threads_for(total), kThreads, 0, total, to.length,
           from.length, inner, static_cast<const Word*>(x.raw()), Indices(index),
           static_cast<Word*>(out.raw()));
  });
}

void gather(const Tensor& x, const Tensor& index, int dim, const Tensor& out) {
  const AxisExtent from(x, dim), to(out, dim);
  with_word(size_of(x.dtype()), [&]<class Word>(Word) {
    launch(indexing_gather_kernel<Word>, threads_for(out.numel()), kThreads, 0, out.numel(),
           to.length, from.length, from.inner, static_cast<const Word*>(x.raw()), Indices(index),
           static_cast<Word*>(out.raw()));
  });
}

void scatter_add(const Tensor& source, const Tensor& index, int dim, const Tensor& out) {
  const AxisExtent from(source, dim), to(out, dim);
  const std::int64_t columns = to.outer * to.inner, n = from.length;
  if (n == 0) return;
  dispatch_numeric(out.dtype(), [&]<class T>() {
    if (to.inner == 1)
      launch(indexing_scatter_add_row_kernel<T>, threads_for(columns * kWarp), kThreads, 0, columns,
             n, to.length, source.data<T>(), Indices(index), out.data<T>());
    else
      launch(indexing_scatter_add_kernel<T>, threads_for(columns), kThreads, 0, columns, n,
             to.length, to.inner, source.data<T>(), Indices(index), out.data<T>());
  });
}

void scatter(const Tensor& source, const Tensor& index, int dim, const Tensor& out) {
  const AxisExtent from(source, dim), to(out, dim);
  const std::int64_t columns = to.outer * to.inner, n = from.length;
  if (n == 0) return;
  with_word(size_of(out.dtype()), [&]<class Word>(Word) {
    const auto* const words = static_cast<const Word*>(source.raw());
    auto* const to_words = static_cast<Word*>(out.raw());
    if (to.inner == 1)
      launch(indexing_scatter_row_kernel<Word>, threads_for(columns * kWarp), kThreads, 0, columns,
             n, to.length, words, Indices(index), to_words);
    else
      launch(indexing_scatter_kernel<Word>, threads_for(columns), kThreads, 0, columns, n,
             to.length, to.inner, words, Indices(index), to_words);
  });
}

void one_hot(const Tensor& ids, const Tensor& out) {
  dispatch_all(out.dtype(), [&]<class T>() {
    with_word(sizeof(T), [&]<class Word>(Word) {
      if constexpr (sizeof(Word) == sizeof(T))
        launch(indexing_one_hot_kernel<Word>, threads_for(ids.numel()), kThreads, 0, ids.numel(),
               out.dim(-1), Indices(ids), std::bit_cast<Word>(T(1.0f)),
               static_cast<Word*>(out.raw()));
    });
  });
}

void tril(const Tensor& x, std::int64_t diagonal, const Tensor& out) {
  with_word(size_of(x.dtype()), [&]<class Word>(Word) {
    launch(indexing_tril_kernel<Word>, threads_for(x.numel()), kThreads, 0, x.numel(), x.dim(-2),
           x.dim(-1), diagonal, static_cast<const Word*>(x.raw()), static_cast<Word*>(out.raw()));
  });
}

}  // namespace weft::cuda
