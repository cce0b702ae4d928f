#include "weft/autograd/token_permute.h"

#include "weft/autograd/fp8_rows.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/token_permute.h"
#include "weft/core/memory_trace.h"

namespace weft {
namespace {

// Row counts known without reading a GPU: the capacity, or an even share on the meta device.
Tensor planned_rows(std::int64_t slots, const RowLayout& layout) {
  const UntracedScope untraced;  // on the CPU they are the counts
  const Tensor rows = Tensor::empty({layout.experts}, DType::i64);
  std::int64_t* n = rows.data<std::int64_t>();
  for (std::int64_t e = 0; e < layout.experts; ++e)
    n[e] = padded_rows((slots + layout.experts - 1 - e) / layout.experts, layout);
  return rows;
}

std::int64_t sum_of(const Tensor& rows) {
  std::int64_t total = 0;
  for (std::int64_t e = 0; e < rows.numel(); ++e) total += rows.data<std::int64_t>()[e];
  return total;
}

void check_rows(const char* op, const char* label, const Tensor& x, int axes, std::int64_t first,
                const ExpertRows& rows) {
  detail::check_tensor(op, label, x);
  if (!is_compute(x.dtype())) throw_bad_dtype(op, x.dtype(), kFloatingNames);
  check(x.ndim() == axes && x.dim(0) == first, "{}: {} must have {} axes and {} rows, got shape {}",
        op, label, axes, first, x.shape());
  check(x.device() == rows.row_of.device(), "{}: {} must be on {} like the rows, got {}", op, label,
        rows.row_of.device(), x.device());
}

Tensor combine(const Tensor& y, const Tensor& row_of, const Tensor& slot_of);

// row_of may have another k than in the sort: probabilities are T * k tokens with one slot each.
// `counts` is saved only for its memory: on the CPU the matrix products save it as `rows`, and the
// meta device must count the same bytes.
Tensor permute(const Tensor& x, const Tensor& row_of, const Tensor& slot_of,
               const Tensor& counts = {}) {
  Tensor y = Tensor::empty({slot_of.dim(0), x.dim(1)}, x.dtype(), x.device());
  dispatch<cpu::permute_tokens, cuda::permute_tokens>(contiguous(x), slot_of, row_of.dim(1), y);
  if (!recording(x)) return y;
  Tape::record(
      "permute_tokens", {&x}, {&y},
      [r = save(row_of, "row_of"), s = save(slot_of, "slot_of"), kept = save(counts, "counts")](
          Backward& b) { b.add(0, combine(b.dy(), r.get(), s.get())); });
  fp8::move_rows(x, y, [&](const Tensor& from, const Tensor& to) {
    dispatch<cpu::permute_tokens, cuda::permute_tokens>(from, slot_of, row_of.dim(1), to);
  });
  return y;
}

Tensor combine(const Tensor& y, const Tensor& row_of, const Tensor& slot_of) {
  Tensor x = Tensor::empty({row_of.dim(0), y.dim(1)}, y.dtype(), y.device());
  dispatch<cpu::combine_tokens, cuda::combine_tokens>(contiguous(y), row_of, x);
  if (recording(y))
    Tape::record("combine_tokens", {&y}, {&x},
                 [r = save(row_of, "row_of"), s = save(slot_of, "slot_of")](Backward& b) {
                   b.add(0, permute(b.dy(), r.get(), s.get()));
                 });
  return x;
}

}  // namespace

ExpertRows sort_by_expert(const Tensor& experts, std::int64_t count, const RowOptions& o) {
  detail::check_tensor("sort_by_expert", "experts", experts);
  check(experts.ndim() == 2, "sort_by_expert: experts must have shape (tokens, k), got {}",
        experts.shape());
  check(experts.dtype() == DType::i32 || experts.dtype() == DType::i64,
        "sort_by_expert: experts must be i32 or i64, got {}", experts.dtype());
  check(count >= 1, "sort_by_expert: the number of experts must be at least 1, got {}", count);
  check(o.alignment >= 1, "sort_by_expert: alignment must be at least 1, got {}", o.alignment);
  check(o.capacity >= 0 && o.capacity % o.alignment == 0,
        "sort_by_expert: capacity must be 0 or a multiple of alignment {}, got {}", o.alignment,
        o.capacity);
  const Device device = experts.device();
  check(!device.is_gpu() || count <= kMaxExperts,
        "sort_by_expert: on a GPU there can be at most {} experts, got {}", kMaxExperts, count);
  const RowLayout layout{count, o.alignment, o.capacity};
  const std::int64_t slots = experts.numel();
  const Tensor slot_of = Tensor::empty({max_rows(slots, layout)}, DType::i64, device);
  ExpertRows out;
  out.counts = Tensor::empty({count}, DType::i64, device);
  out.row_of = Tensor::empty(experts.shape(), DType::i64, device);
  Tensor scratch;
  if (device.is_gpu())
    scratch = Tensor::empty({sort_by_expert_scratch(slots, count)}, DType::i64, device);
  dispatch<cpu::sort_by_expert, cuda::sort_by_expert>(contiguous(experts), layout, scratch,
                                                      out.row_of, slot_of, out.counts);
  out.slot_of = slot_of;
  // On the CPU the counts can be read at once, with or without a capacity.
  const bool planned = device.is_meta() || (o.capacity && !device.is_cpu());
  if (planned || o.capacity || o.read)
    know_rows(out, planned ? planned_rows(slots, layout) : out.counts.to(kCpu));
  return out;
}

void know_rows(ExpertRows& sorted, const Tensor& given) {
  detail::check_tensor("know_rows", "rows", given);
  check(given.shape() == sorted.counts.shape() && given.dtype() == DType::i64 &&
            given.device() == kCpu,
        "know_rows: rows must be i64 of shape {} on cpu, got {} of shape {} on {}",
        sorted.counts.shape(), given.dtype(), given.shape(), given.device());
  const Tensor rows = contiguous(given);
  for (std::int64_t e = 0; e < rows.numel(); ++e)
    check(rows.data<std::int64_t>()[e] >= 0,
          "know_rows: rows must be at least 0, got {} for expert {}", rows.data<std::int64_t>()[e],
          e);
  const std::int64_t total = sum_of(rows);
  check(total <= sorted.slot_of.dim(0), "know_rows: rows must sum to at most {}, got {}",
        sorted.slot_of.dim(0), total);
  sorted.rows = rows;
  sorted.slot_of = sorted.slot_of.alias({total}, {1}, 0);
}

Tensor permute_tokens(const Tensor& x, const ExpertRows& rows) {
  check_rows("permute_tokens", "x", x, 2, rows.row_of.dim(0), rows);
  return permute(x, rows.row_of, rows.slot_of, rows.counts);
}

Tensor permute_probs(const Tensor& probs, const ExpertRows& rows) {
  check_rows("permute_probs", "probs", probs, 2, rows.row_of.dim(0), rows);
  check(probs.shape() == rows.row_of.shape(), "permute_probs: probs must have shape {}, got {}",
        rows.row_of.shape(), probs.shape());
  const std::int64_t slots = probs.numel();
  const Tensor each = rows.row_of.alias({slots, 1}, {1, 1}, 0);
  return reshape(permute(reshape(probs, {slots, 1}), each, rows.slot_of), {rows.slot_of.dim(0)});
}

Tensor combine_tokens(const Tensor& y, const ExpertRows& rows) {
  check_rows("combine_tokens", "y", y, 2, rows.slot_of.dim(0), rows);
  return combine(y, rows.row_of, rows.slot_of);
}

}  // namespace weft
