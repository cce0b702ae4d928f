#include "weft/core/kernels/indexing.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "weft/core/kernels/elementwise_ops.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

template <class T>
void add_to(T* out, const T* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(out[i] + x[i]);
}

// Calls write(out[o, index[o, j, i], i], source[o, j, i]) for each column (o, i) in ascending j, on
// one thread.
template <class I, class T, class F>
void each_place(const Tensor& index, int dim, const Tensor& out, const T* ps, T* po, F write) {
  const AxisExtent from(index, dim), to(out, dim);
  const std::int64_t inner = to.inner, n = from.length;
  const I* id = index.data<I>();
  parallel_for(to.outer * inner, 2 * n, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t o = begin / inner; o * inner < end; ++o) {
      const std::int64_t first = std::max(begin - o * inner, std::int64_t{0});
      const std::int64_t last = std::min(end - o * inner, inner);
      for (std::int64_t j = 0; j < n; ++j)
        for (std::int64_t i = first; i < last; ++i) {
          const std::int64_t at = (o * n + j) * inner + i;
          write(po[(o * to.length + id[at]) * inner + i], ps[at]);
        }
    }
  });
}

}  // namespace

void find_bad_index(const Tensor& index, const char*, const char*, std::int64_t limit,
                    const Tensor& bad) {
  const std::int64_t n = index.numel();
  std::int64_t* result = bad.data<std::int64_t>();
  dispatch_index(index.dtype(), [&]<class I>() {
    const I* p = index.data<I>();
    std::atomic<std::int64_t> first{n};  // the smallest position, whichever thread finds it first
    parallel_for(n, 1, [&](std::int64_t begin, std::int64_t end) {
      const I* at = std::find_if(p + begin, p + end, [&](I v) { return v < 0 || v >= limit; });
      const std::int64_t found = at - p;
      std::int64_t seen = first.load();
      while (found < end && found < seen && !first.compare_exchange_weak(seen, found)) {
      }
    });
    result[0] = first < n;
    result[1] = first < n ? static_cast<std::int64_t>(p[first]) : 0;
  });
}

void index_select(const Tensor& x, const Tensor& index, int dim, const Tensor& out) {
  const AxisExtent from(x, dim), to(out, dim);
  const std::int64_t inner = from.inner;
  dispatch_index(index.dtype(), [&]<class I>() {
    const I* id = index.data<I>();
    with_word(size_of(x.dtype()), [&]<class Word>() {
      const Word* px = static_cast<const Word*>(x.raw());
      Word* py = static_cast<Word*>(out.raw());
      parallel_for(to.outer * to.length, inner, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
          const std::int64_t row = r / to.length * from.length + id[r % to.length];
          std::copy_n(px + row * inner, inner, py + r * inner);
        }
      });
    });
  });
}

// Each sum runs in ascending j, so the split among threads may follow the shape. Long rows are cut
// into columns, which shares the work evenly even when few distinct indices occur (a byte
// vocabulary); short rows are distributed whole.
void index_add(const Tensor& source, const Tensor& index, int dim, const Tensor&,
               const Tensor& out) {
  const AxisExtent from(source, dim), to(out, dim);
  const std::int64_t inner = to.inner, n = from.length;
  constexpr std::int64_t kBlock = 16, kLongRow = 4 * kBlock;
  dispatch_index(index.dtype(), [&]<class I>() {
    const I* id = index.data<I>();
    dispatch_numeric(out.dtype(), [&]<class T>() {
      const T* ps = source.data<T>();
      T* po = out.data<T>();
      if (inner >= kLongRow) {
        const std::int64_t blocks = (inner + kBlock - 1) / kBlock;
        parallel_for(blocks, from.outer * n * kBlock, [&](std::int64_t begin, std::int64_t end) {
          const std::int64_t left = begin * kBlock, width = std::min(end * kBlock, inner) - left;
          for (std::int64_t o = 0; o < from.outer; ++o)
            for (std::int64_t j = 0; j < n; ++j)
              add_to(po + (o * to.length + id[j]) * inner + left, ps + (o * n + j) * inner + left,
                     width);
        });
        return;
      }
      const std::int64_t rows = to.outer * to.length;
      const std::int64_t work = rows ? source.numel() / rows + 1 : 1;
      parallel_for(rows, work, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t o = begin / to.length; o * to.length < end; ++o)
          for (std::int64_t j = 0; j < n; ++j) {
            const std::int64_t row = o * to.length + id[j];
            if (row >= begin && row < end)
              add_to(po + row * inner, ps + (o * n + j) * inner, inner);
          }
      });
    });
  });
}

void gather(const Tensor& x, const Tensor& index, int dim, const Tensor& out) {
  const AxisExtent from(x, dim), to(out, dim);
  const std::int64_t inner = from.inner;
  dispatch_index(index.dtype(), [&]<class I>() {
    const I* id = index.data<I>();
    with_word(size_of(x.dtype()), [&]<class Word>() {
      const Word* px = static_cast<const Word*>(x.raw());
      Word* py = static_cast<Word*>(out.raw());
      parallel_for(to.outer * to.length, 2 * inner, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t r = begin; r < end; ++r) {
          const Word* xo = px + r / to.length * from.length * inner;
          for (std::int64_t i = 0; i < inner; ++i) {
            const std::int64_t at = r * inner + i;
            py[at] = xo[id[at] * inner + i];
          }
        }
      });
    });
  });
}

void scatter_add(const Tensor& source, const Tensor& index, int dim, const Tensor& out) {
  dispatch_index(index.dtype(), [&]<class I>() {
    dispatch_numeric(out.dtype(), [&]<class T>() {
      each_place<I>(index, dim, out, source.data<T>(), out.data<T>(),
                    [](T& sum, T x) { sum = static_cast<T>(sum + x); });
    });
  });
}

void scatter(const Tensor& source, const Tensor& index, int dim, const Tensor& out) {
  dispatch_index(index.dtype(), [&]<class I>() {
    with_word(size_of(out.dtype()), [&]<class Word>() {
      each_place<I>(index, dim, out, static_cast<const Word*>(source.raw()),
                    static_cast<Word*>(out.raw()), [](Word& place, Word x) { place = x; });
    });
  });
}

void one_hot(const Tensor& ids, const Tensor& out) {
  const std::int64_t classes = out.dim(-1);
  std::uint64_t bits = 0;  // of 1
  dispatch_all(out.dtype(), [&]<class T>() {
    const T one(1.0f);
    std::memcpy(&bits, &one, sizeof(T));
  });
  dispatch_index(ids.dtype(), [&]<class I>() {
    const I* id = ids.data<I>();
    with_word(size_of(out.dtype()), [&]<class Word>() {
      Word* p = static_cast<Word*>(out.raw());
      parallel_for(ids.numel(), 4, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) p[i * classes + id[i]] = static_cast<Word>(bits);
      });
    });
  });
}

void tril(const Tensor& x, std::int64_t diagonal, const Tensor& out) {
  const std::int64_t rows = x.dim(-2), columns = x.dim(-1);
  if (x.numel() == 0) return;
  diagonal = std::clamp(diagonal, -rows, columns);  // beyond these, nothing or everything is kept
  with_word(size_of(x.dtype()), [&]<class Word>() {
    const Word* px = static_cast<const Word*>(x.raw());
    Word* py = static_cast<Word*>(out.raw());
    parallel_for(x.numel() / columns, columns, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t kept = std::clamp<std::int64_t>(r % rows + diagonal + 1, 0, columns);
        std::copy_n(px + r * columns, kept, py + r * columns);
        std::fill(py + r * columns + kept, py + (r + 1) * columns, Word{0});
      }
    });
  });
}

}  // namespace weft::cpu
