#include <doctest/doctest.h>

#include "weft/autograd/token_permute.h"
#include "weft/core/cuda.h"
#include "weft/core/kernels/token_permute.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::token_permute_test {
namespace {

using test::disagreement;
using test::kGpu;
using test::random;

// An uneven load, with about one slot in eight not in any row.
Tensor some_experts(std::int64_t tokens, std::int64_t k, std::int64_t count) {
  const Tensor ids = Tensor::empty({tokens, k}, DType::i64);
  for (std::int64_t i = 0; i < tokens * k; ++i)
    ids.data<std::int64_t>()[i] = i % 8 == 3 ? -1 : (i * i + i / 3) % count;
  return ids;
}

struct PermuteCase {
  std::int64_t tokens, k, count;
};
const PermuteCase kPermuteCases[] = {{0, 2, 3}, {1, 1, 1}, {37, 3, 5}, {300, 2, 8}, {130, 9, 300}};
const RowOptions kOptions[] = {{}, {.alignment = 16}, {.capacity = 4}};

}  // namespace

TEST_CASE("sort_by_expert: gives the CPU's rows in every order") {
  for (const auto& [tokens, k, count] : kPermuteCases)
    for (const RowOptions& o : kOptions)
      for (const DType t : {DType::i32, DType::i64}) {
        CAPTURE(tokens);
        CAPTURE(count);
        CAPTURE(o.alignment);
        CAPTURE(o.capacity);
        const Tensor experts = some_experts(tokens, k, count).to(t);
        const ExpertRows want = sort_by_expert(experts, count, o);
        test::for_each_order([&] {
          const ExpertRows got = sort_by_expert(experts.to(kGpu), count, o);
          CHECK(test::different_bits(got.row_of.to(kCpu), want.row_of) == "");
          CHECK(test::different_bits(got.slot_of.to(kCpu), want.slot_of) == "");
          CHECK(test::different_bits(got.rows, want.rows) == "");
        });
      }
}

TEST_CASE("place_chunks: gives the CPU's rows, with empty chunks and padding, in every order") {
  for (const std::int64_t most : {0, 1, 40, 700}) {
    CAPTURE(most);
    constexpr std::int64_t kChunks = 13;
    const Tensor chunks = Tensor::empty({kChunks, 3}, DType::i64);
    std::int64_t before = 0, after = 0;
    for (std::int64_t c = 0; c < kChunks; ++c) {  // every third one is padding
      const std::int64_t n = most ? c * c * 7 % (most + 1) : 0;
      const bool pads = c % 3 == 2;
      std::int64_t* const chunk = chunks.data<std::int64_t>() + 3 * c;
      chunk[0] = pads ? -1 : before;
      chunk[1] = after;
      chunk[2] = n;
      after += n;
      if (!pads) before += n;
    }
    const Tensor rows = Tensor::full({before}, -7, DType::i64),
                 slots = Tensor::full({after}, -7, DType::i64);
    cpu::place_chunks(chunks, rows, slots);
    for (std::int64_t i = 0; i < before; ++i)
      REQUIRE(slots.data<std::int64_t>()[rows.data<std::int64_t>()[i]] == i);
    test::for_each_order([&] {
      const Tensor r = Tensor::full({before}, -7, DType::i64, kGpu),
                   s = Tensor::full({after}, -7, DType::i64, kGpu);
      cuda::place_chunks(chunks.to(kGpu), r, s);
      CHECK(test::different_bits(r.to(kCpu), rows) == "");
      CHECK(test::different_bits(s.to(kCpu), slots) == "");
    });
  }
}

TEST_CASE("permute_tokens, permute_probs, combine_tokens: values and gradients of any width") {
  for (const std::int64_t width : {1, 5, 16, 40})
    for (const RowOptions& o : kOptions) {
      CAPTURE(width);
      const Tensor experts = some_experts(21, 2, 4);
      const std::int64_t n = sort_by_expert(experts, 4, o).slot_of.dim(0);
      const auto rows = [&](const TensorList& in) { return sort_by_expert(in[1], 4, o); };
      const auto permute = [&](const TensorList& in) {
        return TensorList{permute_tokens(in[0], rows(in))};
      };
      const auto combine = [&](const TensorList& in) {
        return TensorList{combine_tokens(in[0], rows(in))};
      };
      CHECK(disagreement(permute, {random({21, width}), experts}) == "");
      CHECK(disagreement(combine, {random({n, width}), experts}) == "");
      CHECK(disagreement(combine, {test::strided(random({n, width})), experts}) == "");
    }
  const auto probs = [&](const TensorList& in) {
    return TensorList{permute_probs(in[0], sort_by_expert(in[1], 4))};
  };
  CHECK(disagreement(probs, {random({21, 2}), some_experts(21, 2, 4)}) == "");
}

TEST_CASE("permute_tokens: moves FP8 codes of any width") {
  const Tensor slots = Tensor::of({3, -1, 0, 9, 4, 1}, {6}, DType::i64);
  for (const std::int64_t width : {7, 16}) {
    CAPTURE(width);
    const Tensor x = random({5, width}).to(DType::e4m3);
    const Tensor want = Tensor::empty({6, width}, DType::e4m3),
                 got = Tensor::empty({6, width}, DType::e4m3, kGpu);
    cpu::permute_tokens(x, slots, 2, want);
    cuda::permute_tokens(x.to(kGpu), slots.to(kGpu), 2, got);
    CHECK(test::different_bits(got.to(kCpu), want) == "");
  }
}

TEST_CASE("sort_by_expert: the host waits once and never with a capacity") {
  const Tensor experts = some_experts(9, 2, 4).to(kGpu), x = random({9, 4}).to(kGpu);
  const std::int64_t before = cuda::host_syncs();
  const ExpertRows rows = sort_by_expert(experts, 4);
  const Tensor y = combine_tokens(permute_tokens(x, rows), rows);
  CHECK(cuda::host_syncs() == before + 1);
  const ExpertRows full = sort_by_expert(experts, 4, {.capacity = 4});
  const Tensor z = combine_tokens(permute_tokens(x, full), full);
  CHECK(cuda::host_syncs() == before + 1);
}

}  // namespace weft::token_permute_test
