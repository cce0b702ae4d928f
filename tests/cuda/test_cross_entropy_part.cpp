#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/linear_cross_entropy.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::cross_entropy_part_test {
namespace {

using test::disagreement;
using test::Op;
using test::random;

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// Targets at both ends of the shard, ignored rows, and others.
std::vector<std::int64_t> targets_for(std::int64_t rows, const ClassRange& range, std::int64_t n) {
  std::vector<std::int64_t> t;
  for (std::int64_t r = 0; r < rows; ++r)
    t.push_back(r % 5 == 3   ? -100
                : r == 0     ? std::min(range.first, range.all - 1)
                : r == 1     ? std::min(range.first + std::max<std::int64_t>(n, 1), range.all) - 1
                : r % 2 == 0 ? r * 977 % range.all
                             : 0);
  return t;
}

struct PartCase {
  std::int64_t first, classes, all;  // this rank's range; all ranks
  double smoothing = 0;
  Reduction reduction = Reduction::sum;
};

// The loss of one rank's classes combined with given statistics of the other ranks, and hits.
std::string check(const PartCase& c, std::int64_t rows, bool all_orders, double tolerance = 1) {
  const ClassRange range{c.first, c.all};
  const std::vector<std::int64_t> t = targets_for(rows, range, c.classes);
  const Tensor other = random({rows, 4}, 5);
  for (std::int64_t r = 0; r < rows; ++r) {
    other.select(0, r).narrow(0, 1, 1).fill_(2.5);
    const std::int64_t own = t[static_cast<std::size_t>(r)] - c.first;
    if (own >= 0 && own < c.classes) other.select(0, r).narrow(0, 2, 1).fill_(kNothing);
  }
  const Op op = [=](const TensorList& in) {
    const Tensor hits = Tensor::empty({rows}, DType::boolean, in[0].device());
    detail::ClassPart part;
    part.range = range;
    part.most = c.all;
    part.gather = [&](const Tensor& own) {
      const Tensor theirs = other.to(own.dtype()).to(own.device());
      return cat({own.view({1, rows, 4}), theirs.view({1, rows, 4})}, 0);
    };
    const Tensor loss = detail::linear_cross_entropy(
        in[0], in[1], in[2],
        {.reduction = c.reduction, .label_smoothing = c.smoothing, .hits = hits}, part);
    return TensorList{loss, cast(hits, DType::i32)};
  };
  const TensorList in{random({rows, 3}, 1), random({c.classes, 3}, 2),
                      Tensor::from(std::span<const std::int64_t>(t), {rows}).to(DType::i32)};
  return disagreement(op, in, {.tolerance = tolerance, .all_orders = all_orders});
}

}  // namespace

TEST_CASE("cross entropy shards: losses, hits and gradients equal the CPU's") {
  for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum})
    for (const double smoothing : {0.0, 0.1}) {
      CHECK(check({0, 6, 11, smoothing, reduction}, 9, true) == "");
      CHECK(check({6, 5, 11, smoothing, reduction}, 9, true) == "");
      CHECK(check({4, 0, 4, smoothing, reduction}, 5, false) == "");
    }
  CHECK(check({37, 129, 300, 0.1}, 7, true) == "");
  // Among many classes, logits of 8 dominate. Such a logit is off by up to 2^-6 in bf16, and so is
  // its exponential, in addition to all other roundings.
  CHECK(check({1000, 1025, 3000, 0.1}, 3, false, 2) == "");
  CHECK(check({5, 8193, 8200, 0.1}, 3, false, 2) == "");
}

}  // namespace weft::cross_entropy_part_test
