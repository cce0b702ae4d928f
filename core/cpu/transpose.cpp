#include "weft/core/cpu/transpose.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "weft/core/cpu/merged_axes.h"
#include "weft/core/kernels/elementwise_ops.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

inline constexpr std::int64_t kVectorBytes = 16, kLineBytes = 64;
// As many elements as a vector has, and as a cache line has.
template <class Word>
inline constexpr std::int64_t kVector = kVectorBytes / sizeof(Word);
template <class Word>
inline constexpr std::int64_t kLine = kLineBytes / sizeof(Word);

// Elements of a and b in turns, beginning with number `kFrom` of each.
template <int kFrom, class Vector, int... I>
Vector interleave(Vector a, Vector b, std::integer_sequence<int, I...>) {
  constexpr int kCount = sizeof...(I);
  return __builtin_shufflevector(a, b, (kFrom + I / 2 + I % 2 * kCount)...);
}

// y = the transpose of a block of kVector x kVector elements of x, with instructions that every
// x86-64 processor has. Interleaving row i with the row half a block below, log2(kVector) times,
// transposes.
template <class Word>
[[gnu::always_inline]] inline void transpose_block(const Word* x, std::int64_t ldx, Word* y,
                                                   std::int64_t ldy) {
  constexpr int N = kVector<Word>;
  typedef Word Vector __attribute__((vector_size(16)));
  constexpr std::make_integer_sequence<int, N> kAll;
  Vector rows[N];
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) std::memcpy(&rows[i], x + i * ldx, sizeof(Vector));
#pragma GCC unroll 4
  for (int round = 1; round < N; round *= 2) {
    Vector next[N];
#pragma GCC unroll 16
    for (int i = 0; i < N / 2; ++i) {
      next[2 * i] = interleave<0>(rows[i], rows[i + N / 2], kAll);
      next[2 * i + 1] = interleave<N / 2>(rows[i], rows[i + N / 2], kAll);
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) rows[i] = next[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < N; ++i) std::memcpy(y + i * ldy, &rows[i], sizeof(Vector));
}

// y[i * ldy + j] = x[j * ldx + i] for i < m, j < n: blocks, and single elements at two edges.
template <class Word>
void transpose_blocks(const Word* x, std::int64_t ldx, Word* y, std::int64_t ldy, std::int64_t m,
                      std::int64_t n) {
  constexpr std::int64_t N = kVector<Word>;
  const std::int64_t rows = m / N * N, columns = n / N * N;
  const auto block = [=](std::int64_t i, std::int64_t j) __attribute__((always_inline)) {
    transpose_block(x + j * ldx + i, ldx, y + i * ldy + j, ldy);
  };
  // The longer side passes while the other one stays within a line, or within a vector at its end.
  const auto pass = [=]<int kBlocks>(std::int64_t at) {
    const std::int64_t length = columns >= rows ? columns : rows;
    for (std::int64_t k = 0; k < length; k += N)
#pragma GCC unroll 4
      for (int p = 0; p < kBlocks; ++p) {
        const std::int64_t across = at + p * N;
        if (columns >= rows)
          block(across, k);
        else
          block(k, across);
      }
  };
  std::int64_t at = 0;
  for (; at + kLine<Word> <= std::min(rows, columns); at += kLine<Word>)
    pass.template operator()<kLine<Word> / N>(at);
  for (; at < std::min(rows, columns); at += N) pass.template operator()<1>(at);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = i < rows ? columns : 0; j < n; ++j) y[i * ldy + j] = x[j * ldx + i];
}

// The last axis of stride 1; -1 if there is none.
int unit_axis(const Shape& steps) {
  for (int i = steps.size() - 1; i >= 0; --i)
    if (steps[i] == 1) return i;
  return -1;
}

}  // namespace

bool copy_transposed(const Tensor& source, const Tensor& out) {
  if (source.dtype() != out.dtype()) return false;
  if (source.is_contiguous() && out.is_contiguous()) return false;
  const MergedAxes<2> axes({&source, &out});
  const int a = unit_axis(axes.steps[0]), b = unit_axis(axes.steps[1]);
  if (a < 0 || b < 0 || a == b) return false;
  const std::int64_t rows = axes.shape[a], columns = axes.shape[b];
  const std::int64_t least = kVectorBytes / static_cast<std::int64_t>(size_of(out.dtype()));
  if (out.numel() == 0 || rows < least || columns < least) return false;

  // Pieces are long, since each stretch of a row begins without prefetched lines, and narrow, so
  // that there are enough of them for all threads.
  constexpr std::int64_t kLong = 4096, kNarrow = 64;
  const std::int64_t most_rows = columns >= rows ? kNarrow : kLong;
  const std::int64_t most_columns = columns >= rows ? kLong : kNarrow;
  const std::int64_t down = (rows + most_rows - 1) / most_rows;
  const std::int64_t across = (columns + most_columns - 1) / most_columns;
  const std::int64_t pieces = out.numel() / (rows * columns) * down * across;
  with_word(size_of(out.dtype()), [&]<class Word>() {
    const Word* x = static_cast<const Word*>(source.raw());
    Word* y = static_cast<Word*>(out.raw());
    parallel_for(pieces, out.numel() / pieces, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) {
        const std::int64_t i = piece / across % down * most_rows;
        const std::int64_t j = piece % across * most_columns;
        std::int64_t from = i + j * axes.steps[0][b], to = i * axes.steps[1][a] + j;
        std::int64_t rest = piece / (down * across);
        for (int k = axes.shape.size() - 1; k >= 0; --k) {
          if (k == a || k == b) continue;
          from += rest % axes.shape[k] * axes.steps[0][k];
          to += rest % axes.shape[k] * axes.steps[1][k];
          rest /= axes.shape[k];
        }
        transpose_blocks(x + from, axes.steps[0][b], y + to, axes.steps[1][a],
                         std::min(most_rows, rows - i), std::min(most_columns, columns - j));
      }
    });
  });
  return true;
}

}  // namespace weft::cpu
