// The sort of slots by expert, and the ops that move rows by it.
#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/token_permute.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft::token_permute_test {
namespace {

using test::different_bits;
using test::error_of;
using test::mismatch;
using test::random;

using Numbers = std::vector<std::int64_t>;

Numbers numbers(const Tensor& t) {
  const Tensor c = contiguous(t);
  return {c.data<std::int64_t>(), c.data<std::int64_t>() + c.numel()};
}

Tensor experts_of(const Numbers& ids, std::int64_t k) {
  const auto n = static_cast<std::int64_t>(ids.size());
  return Tensor::from(std::span<const std::int64_t>(ids), {n / k, k});
}

// k different experts for each token, and -1 for about one slot in eight.
Tensor some_experts(std::int64_t tokens, std::int64_t k, std::int64_t count, bool drop = true) {
  Numbers ids;
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t j = 0; j < k; ++j)
      ids.push_back(drop && (3 * t + j) % 8 == 0 ? -1 : (t * t + 5 * t / 3 + j) % count);
  return experts_of(ids, k);
}

// By definition: for each expert all slots in order, without those above the capacity.
struct Want {
  Numbers row_of, slot_of, rows;
  Want(const Tensor& experts, std::int64_t count, const RowOptions& o) {
    const Numbers id = numbers(experts);
    row_of.assign(id.size(), -1);
    for (std::int64_t e = 0; e < count; ++e) {
      const auto first = static_cast<std::int64_t>(slot_of.size());
      for (std::size_t i = 0; i < id.size(); ++i) {
        if (id[i] != e) continue;
        if (o.capacity && static_cast<std::int64_t>(slot_of.size()) - first == o.capacity) break;
        row_of[i] = static_cast<std::int64_t>(slot_of.size());
        slot_of.push_back(static_cast<std::int64_t>(i));
      }
      const auto filled = [&] { return static_cast<std::int64_t>(slot_of.size()) - first; };
      while (o.capacity ? filled() < o.capacity : filled() % o.alignment != 0)
        slot_of.push_back(-1);
      rows.push_back(filled());
    }
  }
};

void check_sort(const Tensor& experts, std::int64_t count, const RowOptions& o) {
  CAPTURE(to_string(experts.shape()));
  CAPTURE(count);
  CAPTURE(o.alignment);
  CAPTURE(o.capacity);
  const Want want(experts, count, o);
  for (const DType t : {DType::i64, DType::i32}) {
    const ExpertRows got = sort_by_expert(experts.to(t), count, o);
    CHECK(numbers(got.row_of) == want.row_of);
    CHECK(numbers(got.slot_of) == want.slot_of);
    CHECK(numbers(got.rows) == want.rows);
    CHECK(got.row_of.shape() == experts.shape());
  }
}

// Reorders chunks of rows and restores the order with the same two ops.
ExpertRows chunks_in_order(const Numbers& sizes, const Numbers& order) {
  Numbers source;
  for (const std::int64_t chunk : order) {
    const auto at = sizes.begin() + chunk;
    const std::int64_t first = std::accumulate(sizes.begin(), at, std::int64_t{0});
    for (std::int64_t i = 0; i < *at; ++i) source.push_back(first + i);
  }
  Numbers target(source.size());
  for (std::size_t i = 0; i < source.size(); ++i)
    target[static_cast<std::size_t>(source[i])] = static_cast<std::int64_t>(i);
  const auto n = static_cast<std::int64_t>(source.size());
  return {experts_of(target, 1), experts_of(source, 1).view({n}), {}, {}};
}

}  // namespace

TEST_CASE("sort_by_expert: sorts by expert and then by token for every alignment and capacity") {
  for (const std::int64_t tokens : {0, 1, 7, 65})
    for (const std::int64_t k : {1, 2, 3})
      for (const RowOptions o :
           {RowOptions{}, RowOptions{.alignment = 4}, RowOptions{.capacity = 3},
            RowOptions{.alignment = 8, .capacity = 16}})
        check_sort(some_experts(tokens, k, 5), 5, o);
  check_sort(experts_of({}, 1).reshape({3, 0}), 4, {});
  check_sort(experts_of({2, 2, 2, 2}, 1), 3, {});      // one expert has all slots, two have none
  check_sort(experts_of({-1, -1, -1, -1}, 2), 2, {});  // no slot is left
  check_sort(experts_of({0, 9, -7, 1}, 2), 2, {});     // out of range: no row
  check_sort(experts_of({1, 1, 0, 1}, 2), 2, {});      // the same expert twice
}

TEST_CASE("D2: the worked example on both ranks' local halves") {
  const ExpertRows a = sort_by_expert(experts_of({0, 1, 1, 2, 2, 3, 1, 0}, 2), 4);
  CHECK(numbers(a.rows) == Numbers{2, 3, 2, 1});
  const ExpertRows b = sort_by_expert(experts_of({3, 0, 3, 1, 3, 2, 0, 1}, 2), 4);
  CHECK(numbers(b.rows) == Numbers{2, 2, 1, 3});
  // Token i has the value i.
  const Tensor x = Tensor::arange(0, 4, 1, DType::f64).view({4, 1});
  CHECK(mismatch(permute_tokens(x, a), Tensor::of({0, 3, 0, 1, 3, 1, 2, 2}, {8, 1}), 0) == "");
  CHECK(mismatch(permute_tokens(x, b), Tensor::of({0, 3, 1, 3, 2, 0, 1, 2}, {8, 1}), 0) == "");
}

TEST_CASE("D2, D4: the worked example over two ranks simulated by slices, and back") {
  const ExpertRows rows[] = {sort_by_expert(experts_of({0, 1, 1, 2, 2, 3, 1, 0}, 2), 4),
                             sort_by_expert(experts_of({3, 0, 3, 1, 3, 2, 0, 1}, 2), 4)};
  // Tokens a0 .. a3 are 0 .. 3, tokens b0 .. b3 are 10 .. 13.
  Tensor x = Tensor::of({0, 1, 2, 3, 10, 11, 12, 13}, {8, 1}, DType::f64);
  x.set_requires_grad();
  Tape tape;
  Tensor sent[2];
  for (int r = 0; r < 2; ++r) sent[r] = permute_tokens(x.narrow(0, 4 * r, 4), rows[r]);
  // Experts 0 and 1 are on rank 0: input splits [5, 3] and [4, 4].
  const Tensor received[] = {cat({sent[0].narrow(0, 0, 5), sent[1].narrow(0, 0, 4)}, 0),
                             cat({sent[0].narrow(0, 5, 3), sent[1].narrow(0, 4, 4)}, 0)};
  CHECK(mismatch(received[0].view({9}), Tensor::of({0, 3, 0, 1, 3, 10, 13, 11, 13}, {9}), 0) == "");
  CHECK(mismatch(received[1].view({7}), Tensor::of({1, 2, 2, 12, 10, 11, 12}, {7}), 0) == "");
  const ExpertRows order[] = {chunks_in_order({2, 3, 2, 2}, {0, 2, 1, 3}),
                              chunks_in_order({2, 1, 1, 3}, {0, 2, 1, 3})};
  Tensor back[2];
  for (int r = 0; r < 2; ++r) {
    const Tensor by_expert = permute_tokens(received[r], order[r]);
    const Tensor want = r == 0 ? Tensor::of({0, 3, 10, 13, 0, 1, 3, 11, 13}, {9, 1})
                               : Tensor::of({1, 2, 12, 2, 10, 11, 12}, {7, 1});
    CHECK(mismatch(by_expert, want, 0) == "");
    back[r] = combine_tokens(by_expert, order[r]);
  }
  const Tensor home[] = {cat({back[0].narrow(0, 0, 5), back[1].narrow(0, 0, 3)}, 0),
                         cat({back[0].narrow(0, 5, 4), back[1].narrow(0, 3, 4)}, 0)};
  const Tensor y = cat({combine_tokens(home[0], rows[0]), combine_tokens(home[1], rows[1])}, 0);
  CHECK(mismatch(y, mul(x.detach(), 2.0), 0) == "");
  const Tensor dy = random({8, 1}, 3);
  CHECK(mismatch(tape.gradients(y, {x}, dy)[0], mul(dy, 2.0), 0) == "");
}

TEST_CASE("D6: every count is a multiple of the alignment even above the number of tokens") {
  const Tensor experts = experts_of({0, 3, 3}, 1);
  const ExpertRows rows = sort_by_expert(experts, 4, {.alignment = 16});
  CHECK(numbers(rows.rows) == Numbers{16, 0, 0, 16});
  Tensor x = random({3, 2});
  x.set_requires_grad();
  Tape tape;
  const Tensor y = permute_tokens(x, rows);
  // A padding row passes nothing on, whatever its gradient.
  CHECK(mismatch(y.narrow(0, 1, 15), Tensor::zeros({15, 2}, DType::f64), 0) == "");
  const Tensor dy = random({32, 2}, 5);
  const Tensor want = cat({dy.narrow(0, 0, 1), dy.narrow(0, 16, 2)}, 0);
  CHECK(mismatch(tape.gradients(y, {x}, dy)[0], want, 0) == "");
  CHECK(mismatch(combine_tokens(y, rows), x, 0) == "");
}

TEST_CASE("D1: permuting and combining with shares of 1/k restores x and its gradient") {
  struct Case {
    std::int64_t tokens, k, experts;
  };
  // Halves and quarters are exact, so the round trip is exact.
  for (const auto& [tokens, k, count] :
       {Case{9, 2, 4}, Case{5, 4, 7}, Case{6, 1, 50}, Case{0, 2, 3}})
    for (const DType t : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      const ExpertRows rows = sort_by_expert(some_experts(tokens, k, count, false), count);
      CHECK(rows.slot_of.dim(0) == tokens * k);
      Tensor x = random({tokens, 3}, 1, t);
      x.set_requires_grad();
      const Tensor p = Tensor::full({tokens, k}, 1.0 / static_cast<double>(k), t);
      const Tensor dy = random({tokens, 3}, 2, t);
      Tape tape;
      const Tensor y =
          combine_tokens(mul(permute_tokens(x, rows), permute_probs(p, rows).unsqueeze(1)), rows);
      CHECK(different_bits(y, x.detach()) == "");
      CHECK(different_bits(tape.gradients(y, {x}, dy)[0], dy) == "");
    }
}

TEST_CASE("combine_tokens: bf16 rows are summed in f32 in slot order") {
  // In bf16 256 + 1 stays 256.
  const ExpertRows rows = sort_by_expert(experts_of({2, 1, 0}, 3), 3);
  const Tensor y = Tensor::of({1, 1, 256}, {3, 1}).to(DType::bf16);
  CHECK(combine_tokens(y, rows).item() == 258);
  // In f32 1e8 + 1 stays 1e8: summing in row order would give 0.
  const Tensor z = Tensor::of({1, -1e8, 1e8}, {3, 1});
  CHECK(combine_tokens(z, rows).item() == 1);
}

TEST_CASE(
    "permute_tokens, permute_probs, combine_tokens: gradients of strided inputs match twice") {
  for (const RowOptions o : {RowOptions{}, RowOptions{.alignment = 4}, RowOptions{.capacity = 2}}) {
    const ExpertRows rows = sort_by_expert(some_experts(6, 2, 4), 4, o);
    const std::int64_t n = rows.slot_of.dim(0);
    const auto permute = [&](const TensorList& in) { return square(permute_tokens(in[0], rows)); };
    const auto probs = [&](const TensorList& in) { return square(permute_probs(in[0], rows)); };
    const auto combine = [&](const TensorList& in) { return square(combine_tokens(in[0], rows)); };
    const auto all = [&](const TensorList& in) {
      const Tensor p = permute_probs(in[1], rows).unsqueeze(1);
      return combine_tokens(mul(permute_tokens(in[0], rows), p), rows);
    };
    const GradcheckOptions twice{.second_order = true};
    CHECK(gradcheck(permute, {random({6, 3})}, twice) == "");
    CHECK(gradcheck(permute, {test::strided(random({6, 3}))}) == "");
    CHECK(gradcheck(probs, {random({6, 2})}, twice) == "");
    CHECK(gradcheck(probs, {test::strided(random({6, 2}))}) == "");
    CHECK(gradcheck(combine, {random({n, 3})}, twice) == "");
    CHECK(gradcheck(combine, {test::strided(random({n, 3}))}) == "");
    CHECK(gradcheck(all, {random({6, 3}), random({6, 2}, 2)}, twice) == "");
  }
}

TEST_CASE("combine_tokens: is the transpose of permute_tokens") {
  const ExpertRows rows = sort_by_expert(some_experts(40, 3, 6), 6, {.alignment = 4});
  const Tensor x = random({40, 300}, 1), y = random({rows.slot_of.dim(0), 300}, 2);
  CHECK(mul(permute_tokens(x, rows), y).sum().item() ==
        doctest::Approx(mul(x, combine_tokens(y, rows)).sum().item()).epsilon(1e-12));
}

TEST_CASE("token_permute: the number of threads changes no bit and meta assumes an even load") {
  const test::RestoreThreads restore;
  const Tensor experts = some_experts(700, 2, 8), x = random({700, 130}, 1, DType::f32);
  const auto run = [&] {
    const ExpertRows rows = sort_by_expert(experts, 8);
    return combine_tokens(permute_tokens(x, rows), rows);
  };
  set_num_threads(1);
  const Tensor one = run();
  set_num_threads(3);
  CHECK(different_bits(run(), one) == "");

  const Tensor meta = Tensor::empty({7, 2}, DType::i64, kMeta);
  const ExpertRows even = sort_by_expert(meta, 4), full = sort_by_expert(meta, 4, {.capacity = 5});
  CHECK(numbers(even.rows) == Numbers{4, 4, 3, 3});
  CHECK(numbers(full.rows) == Numbers{5, 5, 5, 5});
  const Tensor mx = Tensor::empty({7, 3}, DType::bf16, kMeta);
  CHECK(permute_tokens(mx, even).shape() == Shape{14, 3});
  CHECK(permute_tokens(mx, full).shape() == Shape{20, 3});
  CHECK(permute_probs(Tensor::empty({7, 2}, DType::f32, kMeta), even).shape() == Shape{14});
  CHECK(combine_tokens(Tensor::empty({20, 3}, DType::bf16, kMeta), full).dtype() == DType::bf16);
  CHECK(combine_tokens(Tensor::empty({20, 3}, DType::bf16, kMeta), full).shape() == Shape{7, 3});
}

TEST_CASE("know_rows: given row counts complete a sort like counts read from the device") {
  const Tensor experts = some_experts(7, 2, 4);
  for (const std::int64_t alignment : {1, 4}) {
    const ExpertRows want = sort_by_expert(experts, 4, {.alignment = alignment});
    ExpertRows got = sort_by_expert(experts, 4, {.alignment = alignment, .read = false});
    CHECK(!got.rows.defined());
    CHECK(different_bits(got.counts, want.rows) == "");
    Tensor gaps = Tensor::full({8}, 100, DType::i64);  // in every second place
    gaps = gaps.slice(0, 0, 8, 2);
    gaps.copy_(want.rows);
    know_rows(got, gaps);
    CHECK(got.rows.is_contiguous());
    CHECK(different_bits(got.rows, want.rows) == "");
    CHECK(different_bits(got.slot_of, want.slot_of) == "");
  }
  // With a capacity and on the meta device the counts are always known.
  CHECK(sort_by_expert(experts, 4, {.capacity = 3, .read = false}).slot_of.dim(0) == 12);
  CHECK(sort_by_expert(experts.to(kMeta), 4, {.read = false}).slot_of.dim(0) == 14);
}

TEST_CASE("token_permute: errors name the rule") {
  const Tensor experts = some_experts(3, 2, 4);
  ExpertRows sorted = sort_by_expert(experts, 4, {.read = false});
  CHECK(error_of([&] { know_rows(sorted, {}); }) ==
        "know_rows: rows must be a tensor, got a null handle");
  CHECK(error_of([&] { know_rows(sorted, Tensor::zeros({3}, DType::i64)); }) ==
        "know_rows: rows must be i64 of shape [4] on cpu, got i64 of shape [3] on cpu");
  CHECK(error_of([&] { know_rows(sorted, Tensor::full({4}, 2, DType::i64)); }) ==
        "know_rows: rows must sum to at most 6, got 8");
  CHECK(error_of([&] {
          know_rows(sorted, Tensor::of({1, -1, 5, 0}, {4}, DType::i64));
        }) == "know_rows: rows must be at least 0, got -1 for expert 1");
  CHECK(error_of([&] { sort_by_expert({}, 4); }) ==
        "sort_by_expert: experts must be a tensor, got a null handle");
  CHECK(error_of([&] { sort_by_expert(experts.flatten(), 4); }) ==
        "sort_by_expert: experts must have shape (tokens, k), got [6]");
  CHECK(error_of([&] { sort_by_expert(experts.to(DType::f32), 4); }) ==
        "sort_by_expert: experts must be i32 or i64, got f32");
  CHECK(error_of([&] { sort_by_expert(experts, 0); }) ==
        "sort_by_expert: the number of experts must be at least 1, got 0");
  CHECK(error_of([&] { sort_by_expert(experts, 4, {.alignment = 0}); }) ==
        "sort_by_expert: alignment must be at least 1, got 0");
  CHECK(error_of([&] { sort_by_expert(experts, 4, {.capacity = -1}); }) ==
        "sort_by_expert: capacity must be 0 or a multiple of alignment 1, got -1");
  CHECK(error_of([&] { sort_by_expert(experts, 4, {.alignment = 4, .capacity = 6}); }) ==
        "sort_by_expert: capacity must be 0 or a multiple of alignment 4, got 6");
  const ExpertRows rows = sort_by_expert(experts, 4, {.capacity = 2});
  CHECK(error_of([&] { permute_tokens({}, rows); }) ==
        "permute_tokens: x must be a tensor, got a null handle");
  CHECK(error_of([&] {
          permute_tokens(random({4, 2}), rows);
        }) == "permute_tokens: x must have 2 axes and 3 rows, got shape [4, 2]");
  CHECK(error_of([&] {
          permute_tokens(random({3, 2}, 1, DType::i32), rows);
        }) == "permute_tokens: dtype must be one of f32, f64, bf16, f16, got i32");
  CHECK(error_of([&] {
          permute_tokens(Tensor::empty({3, 2}, DType::f32, kMeta), rows);
        }) == "permute_tokens: x must be on cpu like the rows, got meta");
  CHECK(error_of([&] {
          permute_probs(random({3, 1}), rows);
        }) == "permute_probs: probs must have shape [3, 2], got [3, 1]");
  CHECK(error_of([&] {
          combine_tokens(random({3, 2}), rows);
        }) == "combine_tokens: y must have 2 axes and 8 rows, got shape [3, 2]");
}

}  // namespace weft::token_permute_test
