#pragma once
#include <algorithm>
#include <functional>
#include <optional>

#include "weft/autograd/cross_entropy.h"
#include "weft/core/dispatch.h"
#include "weft/core/gemm.h"
#include "weft/core/kernels/copy.h"
#include "weft/core/kernels/cross_entropy.h"
#include "weft/core/kernels/cross_entropy_part.h"

namespace weft::detail {

using Gather = std::function<Tensor(const Tensor& own)>;

/// Rows [first, first + count) along the outermost axis, as a view that the tape does not record.
inline Tensor rows_of(const Tensor& t, std::int64_t first, std::int64_t count) {
  Shape shape = t.shape();
  shape[0] = count;
  return t.alias(shape, t.strides(), first * t.strides()[0]);
}

/// Classes of the head's large products; a second product has the rest. On a GPU each product reads
/// and writes whole packs of 16 bytes, since cuBLASLt's fast kernels need extents and row distances
/// that are multiples of it. GPT-2's 50,257 classes are odd.
inline std::int64_t packed_classes(std::int64_t classes, DType dtype, Device device) {
  const auto pack = 16 / static_cast<std::int64_t>(size_of(dtype));
  return device.is_gpu() && classes > pack ? classes - classes % pack : classes;
}

/// Flattens the operands to rows, and holds the buffer for the logits of one chunk.
class HeadChunks {
 public:
  /// `part`: for a head sharded over ranks; `gather` as in ClassPart, null in backward.
  HeadChunks(const Tensor& x, const Tensor& weight, const Tensor& targets,
             const CrossEntropyOptions& options, std::int64_t chunk_rows,
             const std::optional<ClassRange>& part, const Gather* gather)
      : rows_(targets.numel()),
        size_(std::max<std::int64_t>(1, std::min(chunk_rows, rows_))),
        x_(x.alias({rows_, x.dim(-1)}, {x.dim(-1), 1}, 0)),
        weight_(weight.detach()),
        targets_(targets.alias({rows_}, {1}, 0)),
        options_(options),
        part_(part),
        gather_(gather),
        packed_(packed_classes(weight.dim(0), x.dtype(), x.device())),
        logits_(empty_logits()) {}

  /// Writes losses (R) and stats (R, 2), which may be null.
  void losses(const Tensor& losses, const Tensor& stats) {
    const Tensor scratch = stats.defined()
                               ? Tensor()
                               : Tensor::empty({logits_.dim(0), 2}, losses.dtype(), x_.device());
    each([&](const Tensor& logits, std::int64_t first, std::int64_t n) {
      const Tensor of_rows = stats.defined() ? rows_of(stats, first, n) : rows_of(scratch, 0, n);
      if (part_) return joined(logits, first, n, rows_of(losses, first, n), of_rows);
      dispatch<cpu::cross_entropy_fwd, cuda::cross_entropy_fwd>(
          logits, rows_of(targets_, first, n), options_.ignore_index, options_.label_smoothing,
          rows_of(losses, first, n), of_rows);
    });
  }

  /// Also computes the gradients of the reduced loss; dx (R, C) and dw (V, C) may be null.
  void losses_and_gradients(const Tensor& losses, const Tensor& count, const Tensor& dx,
                            const Tensor& dw) {
    zero_if_no_rows(dw);
    Tensor stats;
    if (part_) stats = Tensor::empty({logits_.dim(0), 2}, losses.dtype(), x_.device());
    each([&](const Tensor& logits, std::int64_t first, std::int64_t n) {
      if (part_) {
        const Tensor of_rows = rows_of(stats, 0, n);
        joined(logits, first, n, rows_of(losses, first, n), of_rows);
        part_gradient(logits, first, n, of_rows, Tensor(), count);
        return products(logits, first, n, dx, dw);
      }
      count_update(logits);
      dispatch<cpu::cross_entropy_in_place, cuda::cross_entropy_in_place>(
          logits, rows_of(targets_, first, n), count, options_.ignore_index,
          options_.label_smoothing, rows_of(losses, first, n));
      products(logits, first, n, dx, dw);
    });
  }

  /// Gradients for the upstream gradient of each row, dy (R); recomputes the logits. `adds`: dw is
  /// added to what its tensor holds.
  void gradients(const Tensor& stats, const Tensor& dy, const Tensor& dx, const Tensor& dw,
                 bool adds) {
    adds_ = adds;
    zero_if_no_rows(dw);
    each([&](const Tensor& logits, std::int64_t first, std::int64_t n) {
      if (part_) {
        part_gradient(logits, first, n, rows_of(stats, first, n), rows_of(dy, first, n), {});
        return products(logits, first, n, dx, dw);
      }
      dispatch<cpu::cross_entropy_bwd, cuda::cross_entropy_bwd>(
          backward_of(logits, rows_of(targets_, first, n), rows_of(stats, first, n),
                      rows_of(dy, first, n), Tensor()),
          logits);
      products(logits, first, n, dx, dw);
    });
  }

 private:
  template <class F>
  void each(F&& f) {
    for (std::int64_t first = 0; first < rows_; first += size_) {
      const std::int64_t n = std::min(size_, rows_ - first);
      const Tensor logits = rows_of(logits_, 0, n);
      each_product([&](std::int64_t from, std::int64_t classes, bool) {
        gemm(rows_of(x_, first, n), transposed(rows_of(weight_, from, classes)),
             columns_of(logits, from, classes));
      });
      if (options_.hits.defined() && !part_)
        dispatch<cpu::cross_entropy_hits, cuda::cross_entropy_hits>(
            logits, rows_of(targets_, first, n), options_.ignore_index,
            options_.hits.alias({n}, {1}, first));
      f(logits, first, n);
    }
  }

  // Combines the statistics of all ranks for a chunk; the result is equal on every rank.
  void joined(const Tensor& logits, std::int64_t first, std::int64_t n, const Tensor& losses,
              const Tensor& stats) {
    const Tensor targets = rows_of(targets_, first, n);
    const Tensor own = Tensor::empty({n, 4}, losses.dtype(), x_.device());
    dispatch<cpu::cross_entropy_part_stats, cuda::cross_entropy_part_stats>(
        logits, targets, options_.ignore_index, *part_, options_.label_smoothing > 0, own);
    const Tensor all = (*gather_)(own);
    dispatch<cpu::cross_entropy_part_merge, cuda::cross_entropy_part_merge>(
        all, targets, options_.ignore_index, part_->all, options_.label_smoothing, losses, stats,
        options_.hits.defined() ? options_.hits.alias({n}, {1}, first) : Tensor());
  }

  // Overwrites the logits with their gradient.
  void part_gradient(const Tensor& logits, std::int64_t first, std::int64_t n, const Tensor& stats,
                     const Tensor& dy, const Tensor& count) {
    dispatch<cpu::cross_entropy_part_bwd, cuda::cross_entropy_part_bwd>(
        backward_of(logits, rows_of(targets_, first, n), stats, dy, count), *part_, logits);
  }

  CrossEntropyBwdIn backward_of(const Tensor& logits, const Tensor& targets, const Tensor& stats,
                                const Tensor& dy, const Tensor& count) const {
    return {.logits = logits,
            .targets = targets,
            .stats = stats,
            .dy = dy,
            .count = count,
            .ignore_index = options_.ignore_index,
            .label_smoothing = options_.label_smoothing};
  }

  void products(const Tensor& dlogits, std::int64_t first, std::int64_t n, const Tensor& dx,
                const Tensor& dw) {
    each_product([&](std::int64_t from, std::int64_t classes, bool again) {
      const Tensor part = columns_of(dlogits, from, classes);
      if (dx.defined()) gemm(part, rows_of(weight_, from, classes), rows_of(dx, first, n), again);
      if (dw.defined())
        gemm(transposed(part), rows_of(x_, first, n), rows_of(dw, from, classes),
             adds_ || first > 0);
    });
  }

  // Calls f(first class, classes, again). The few classes come first: a sum of 16 bits that both
  // products add to then rounds the smaller part once more.
  template <class F>
  void each_product(F&& f) {
    const std::int64_t classes = weight_.dim(0), rest = classes - packed_;
    if (rest > 0) f(packed_, rest, false);
    f(0, packed_, rest > 0);
  }

  static Tensor columns_of(const Tensor& t, std::int64_t first, std::int64_t count) {
    return t.alias({t.dim(0), count}, t.strides(), first);
  }

  Tensor empty_logits() const {
    const std::int64_t n = std::min(size_, rows_), classes = weight_.dim(0);
    const auto pack = 16 / static_cast<std::int64_t>(size_of(x_.dtype()));
    const std::int64_t step = packed_ < classes ? packed_ + pack : classes;
    return Tensor::empty({n, step}, x_.dtype(), x_.device()).alias({n, classes}, {step, 1}, 0);
  }

  void zero_if_no_rows(const Tensor& dw) const {
    if (dw.defined() && rows_ == 0 && !adds_) dispatch<cpu::fill, cuda::fill>(dw, 0.0);
  }

  std::int64_t rows_, size_;
  Tensor x_, weight_, targets_;
  CrossEntropyOptions options_;
  std::optional<ClassRange> part_;
  const Gather* gather_;
  std::int64_t packed_;
  Tensor logits_;
  bool adds_ = false;
};

}  // namespace weft::detail
