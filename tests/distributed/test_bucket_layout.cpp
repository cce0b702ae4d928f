#include <doctest/doctest.h>

#include "weft/distributed/bucket_layout.h"
#include "weft/tests/support.h"

namespace weft::distributed::bucket_layout_test {
namespace {

NamedTensors four() {
  NamedTensors out;
  for (const auto& [name, size] :
       {std::pair{"a", 100}, std::pair{"b", 64}, std::pair{"c", 200}, std::pair{"d", 130}})
    out.push_back({name, Tensor::zeros({size})});
  return out;
}

// "d0:128 b0:64": the range of each parameter that a rank owns.
std::string owned(const std::vector<BucketLayout>& buckets, int rank, int ranks) {
  std::string text;
  for (const BucketLayout& b : buckets)
    for (const OwnedRange& r : owned_ranges(b, rank, ranks))
      text += message("{}{}{}:{}", text.empty() ? "" : " ",
                      std::string(1, static_cast<char>('a' + r.parameter)), r.in_parameter,
                      r.in_parameter + r.size);
  return text;
}

}  // namespace

TEST_CASE("bucket_layout: one bucket over four ranks") {
  const std::vector<BucketLayout> buckets = plan_buckets(four(), {}, {.dense_ranks = 4});
  REQUIRE(buckets.size() == 1);
  CHECK(buckets[0].size == 640);
  std::string places;
  for (const BucketEntry& e : buckets[0].entries)
    places += message("{}[{},{}) ", e.parameter, e.begin, e.begin + e.size);
  CHECK(places == "3[0,130) 2[192,392) 1[448,512) 0[512,612) ");
  CHECK(owned(buckets, 0, 4) == "d0:130");
  CHECK(owned(buckets, 1, 4) == "c0:128");
  CHECK(owned(buckets, 2, 4) == "c128:200 b0:32");
  CHECK(owned(buckets, 3, 4) == "b32:64 a0:100");
  const OwnedRange last = owned_ranges(buckets[0], 3, 4)[1];
  CHECK(last.in_bucket == 512);
  CHECK(last.in_slice == 32);
  CHECK(last.in_parameter == 0);
  CHECK(last.size == 100);
}

TEST_CASE("bucket_layout: two buckets over four ranks") {
  const std::vector<BucketLayout> buckets =
      plan_buckets(four(), {}, {.bucket_size = 300, .dense_ranks = 4});
  REQUIRE(buckets.size() == 2);
  CHECK(buckets[0].size == 512);
  CHECK(buckets[1].size == 256);
  CHECK(owned(buckets, 0, 4) == "d0:128 b0:64");
  CHECK(owned(buckets, 1, 4) == "d128:130 c0:64 a0:64");
  CHECK(owned(buckets, 2, 4) == "c64:192 a64:100");
  CHECK(owned(buckets, 3, 4) == "c192:200");
}

TEST_CASE("bucket_layout: each kind and dtype has its own buckets in backward order") {
  NamedTensors ps = four();
  ps.push_back({"e", Tensor::zeros({10}, DType::bf16)});
  ps.push_back({"f", Tensor::zeros({10}, DType::f64)});
  Layout layout;
  layout["b"].expert = true;
  layout["d"].tp_partial = true;
  const std::vector<BucketLayout> buckets =
      plan_buckets(ps, layout, {.grad_dtype = DType::bf16, .dense_ranks = 2, .expert_ranks = 3});
  std::string text;
  for (const BucketLayout& b : buckets) {
    text += message("{}{} {} {} {}:", b.expert ? "expert " : "", b.tp_partial ? "partial " : "",
                    name(b.param_dtype), name(b.grad_dtype), b.size);
    for (const BucketEntry& e : b.entries) text += ps[e.parameter].name;
    text += '\n';
  }
  CHECK(text ==
        " f64 f64 128:f\n bf16 bf16 128:e\npartial  f32 bf16 256:d\nexpert  f32 bf16 384:b\n"
        " f32 bf16 384:ca\n");
}

TEST_CASE("bucket_layout: ranks with unequal shards put the same parameters in the same buckets") {
  for (const std::int64_t rows : {6, 6, 6, 3}) {  // of 21, sharded over four ranks
    const NamedTensors ps = {
        {"a", Tensor::zeros({100})}, {"b", Tensor::zeros({64})}, {"c", Tensor::zeros({rows, 16})}};
    Layout layout;
    layout["c"].spec = {{21, 16}, {nn::ShardSpec::Cut{0, {{0, rows}}}}};
    std::string text;
    for (const BucketLayout& b : plan_buckets(ps, layout, {.bucket_size = 80, .dense_parts = 4})) {
      for (const BucketEntry& e : b.entries) text += ps[e.parameter].name;
      text += ' ';
    }
    CHECK(text == "c ba ");
  }
}

TEST_CASE("bucket_layout: the default bucket size is an eighth within bounds") {
  CHECK(default_bucket_size(0, 1) == 262'144);
  CHECK(default_bucket_size(8 * 262'144 + 8, 1) == 262'145);
  CHECK(default_bucket_size(1'000'000, 8) == 8 * 262'144);
  CHECK(default_bucket_size(124'000'000, 2) == 15'500'000);
  CHECK(default_bucket_size(8'000'000'000, 2) == 40'000'000);
  CHECK(default_bucket_size(8'000'000'000, 64) == 64'000'000);
  CHECK(default_bucket_size(1'000'000'000, 1024) == 262'144LL * 1024);

  // Each kind's limit follows from its own total of shards, which is the same on every rank.
  NamedTensors ps;
  Layout layout;
  for (int i = 0; i < 16; ++i) {
    ps.push_back({"dense" + std::to_string(i), Tensor::empty({1 << 18}, DType::f32, kMeta)});
    const std::string expert = "expert" + std::to_string(i);
    const std::int64_t held = i < 8 ? 0 : 1 << 17;
    ps.push_back({expert, Tensor::empty({held}, DType::f32, kMeta)});
    layout[expert].expert = true;
    layout[expert].spec = {{1 << 17}, {nn::ShardSpec::Cut{0, {{0, held}}}}};
  }
  int dense = 0, experts = 0;
  for (const BucketLayout& b : plan_buckets(ps, layout, {.expert_parts = 2})) {
    b.expert ? ++experts : ++dense;
    CHECK(b.entries.size() == (b.expert ? 4u : 2u));
  }
  CHECK(dense == 8);
  CHECK(experts == 4);
}

TEST_CASE("bucket_layout: slices cover every element of every parameter once") {
  for (const int ranks : {1, 2, 3, 4, 7, 64}) {
    const NamedTensors ps = four();
    const auto buckets = plan_buckets(ps, {}, {.bucket_size = 150, .dense_ranks = ranks});
    std::vector<std::vector<int>> seen;
    for (const NamedTensor& p : ps) seen.emplace_back(static_cast<std::size_t>(p.tensor.numel()));
    for (const BucketLayout& b : buckets) {
      CHECK(b.size % ranks == 0);
      CHECK(b.size % 128 == 0);
      for (int r = 0; r < ranks; ++r)
        for (const OwnedRange& o : owned_ranges(b, r, ranks))
          for (std::int64_t i = 0; i < o.size; ++i)
            ++seen[o.parameter][static_cast<std::size_t>(o.in_parameter + i)];
    }
    for (const std::vector<int>& s : seen) CHECK(s == std::vector<int>(s.size(), 1));
  }
}

}  // namespace weft::distributed::bucket_layout_test
