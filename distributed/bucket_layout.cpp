#include "weft/distributed/bucket_layout.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "weft/core/error.h"

namespace weft::distributed {
namespace {

constexpr std::int64_t kStart = 64;  // elements: whole cache lines in every dtype
constexpr std::int64_t kEnd128 = 128;
// Limits of a bucket's size in elements, per rank or in total.
constexpr std::int64_t kLeastForRank = 1 << 18, kMostForRank = 1'000'000, kMost = 40'000'000;

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

using GroupKey = std::tuple<bool, bool, bool, int, DType, DType>;
GroupKey kind_of(const BucketLayout& b) {
  return {b.expert, b.tp_partial, b.codes, b.unit, b.param_dtype, b.grad_dtype};
}

int ranks_of(const BucketLayout& b, const BucketOptions& o) {
  return b.expert ? o.expert_ranks : o.dense_ranks;
}

// The bucket kind of a parameter, and its typical_size().
struct Member {
  BucketLayout bucket;
  std::int64_t typical = 0;
};

Member member_of(const NamedTensors& parameters, std::size_t index, const Layout& layout,
                 const BucketOptions& o) {
  const NamedTensor& p = parameters[index];
  Member m;
  if (!o.unit_of.empty()) m.bucket.unit = o.unit_of.at(index);
  m.typical = typical_size(p, layout, o);
  if (const auto found = layout.find(p.name); found != layout.end()) {
    m.bucket.expert = found->second.expert;
    m.bucket.tp_partial = found->second.tp_partial;
  }
  m.bucket.codes = std::any_of(o.as_codes.begin(), o.as_codes.end(),
                               [&](const Tensor& t) { return t.impl() == p.tensor.impl(); });
  m.bucket.param_dtype = p.tensor.dtype();
  m.bucket.grad_dtype = p.tensor.dtype() == DType::f64 ? DType::f64 : o.grad_dtype;
  return m;
}

}  // namespace

std::int64_t default_bucket_size(std::int64_t total, int ranks) {
  const std::int64_t n = ranks;
  return std::clamp(total / 8, kLeastForRank * n, std::max(kMost, kMostForRank * n));
}

std::int64_t typical_size(const NamedTensor& parameter, const Layout& layout,
                          const BucketOptions& options) {
  const auto found = layout.find(parameter.name);
  if (found == layout.end() || found->second.spec.cuts.empty()) return parameter.tensor.numel();
  const std::int64_t parts = found->second.expert ? options.expert_parts : options.dense_parts;
  return (found->second.spec.whole.numel() + parts - 1) / parts;
}

std::vector<BucketLayout> plan_buckets(const NamedTensors& parameters, const Layout& layout,
                                       const BucketOptions& options) {
  check(options.grad_dtype == DType::f32 || options.grad_dtype == DType::bf16,
        "ddp: grad_dtype must be f32 or bf16, got {}", name(options.grad_dtype));
  check(options.bucket_size >= 0, "ddp: bucket_size must be at least 0, got {}",
        options.bucket_size);
  std::map<GroupKey, std::int64_t> totals;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const Member m = member_of(parameters, p, layout, options);
    totals[kind_of(m.bucket)] += m.typical;
  }
  std::vector<BucketLayout> done, open;
  std::vector<std::int64_t> typical;  // sizes of the open buckets, counted in typical shards
  const auto close = [&](std::size_t i) {
    BucketLayout& b = open[i];
    // Not 0: tensors without elements share one storage, and Fsdp releases and fills each bucket's.
    b.size = round_up(std::max<std::int64_t>(b.size, 1),
                      std::lcm(options.slice_multiple * ranks_of(b, options), kEnd128));
    done.push_back(std::move(b));
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
    typical.erase(typical.begin() + static_cast<std::ptrdiff_t>(i));
  };
  for (std::size_t p = parameters.size(); p-- > 0;) {
    const Member m = member_of(parameters, p, layout, options);
    const auto same = std::find_if(open.begin(), open.end(), [&](const BucketLayout& b) {
      return kind_of(b) == kind_of(m.bucket);
    });
    const auto i = static_cast<std::size_t>(same - open.begin());
    if (same == open.end()) {
      open.push_back(m.bucket);
      typical.push_back(0);
    }
    BucketLayout& b = open[i];
    const std::int64_t begin = round_up(b.size, kStart), size = parameters[p].tensor.numel();
    b.entries.push_back({p, begin, size});
    b.size = begin + size;
    typical[i] = round_up(typical[i], kStart) + m.typical;
    if (!options.unit_of.empty()) continue;
    const std::int64_t enough = options.bucket_size > 0
                                    ? options.bucket_size
                                    : default_bucket_size(totals[kind_of(b)], ranks_of(b, options));
    if (typical[i] >= enough) close(i);
  }
  while (!open.empty()) close(0);
  std::sort(done.begin(), done.end(), [](const BucketLayout& a, const BucketLayout& b) {
    return a.entries.back().parameter > b.entries.back().parameter;
  });
  return done;
}

std::vector<OwnedRange> owned_ranges(const BucketLayout& bucket, int rank, int ranks) {
  const std::int64_t slice = bucket.size / ranks, first = rank * slice;
  std::vector<OwnedRange> out;
  for (const BucketEntry& e : bucket.entries) {
    const std::int64_t begin = std::max(e.begin, first);
    const std::int64_t end = std::min(e.begin + e.size, first + slice);
    if (begin < end)
      out.push_back({e.parameter, begin, begin - first, begin - e.begin, end - begin});
  }
  return out;
}

}  // namespace weft::distributed
