// What a model stores of past tokens: copies, and calls that are refused.
#include <doctest/doctest.h>

#include <array>
#include <vector>

#include "weft/autograd/view.h"
#include "weft/nn/gpt.h"
#include "weft/tests/support.h"

namespace weft::kv_cache_test {
namespace {

using nn::Gpt;
using nn::KvCache;
using test::different_bits;
using test::error_of;

// `pattern`: a for attention, d for a gated delta layer.
Gpt model_of(const char* pattern) {
  return Gpt({.arch = nn::Arch::llama,
              .layers = 2,
              .heads = 2,
              .dim = 16,
              .seq = 12,
              .vocab = 11,
              .pattern = pattern});
}

Tensor tokens(const std::vector<std::int32_t>& ids) {
  return Tensor::from(ids, {1, std::ssize(ids)});
}

constexpr const char* kPatterns[] = {"a", "da", "d"};

}  // namespace

TEST_CASE("kv_cache: a clone continues on its own") {
  for (const char* const pattern : kPatterns) {
    const Gpt model = model_of(pattern);
    KvCache one(model.config, 1, 8), fresh(model.config, 1, 8);
    model.decode(tokens({1, 2, 3}), one);
    KvCache other = one.clone();
    model.decode(tokens({4}), one);
    model.decode(tokens({5}), other);
    model.decode(tokens({1, 2, 3}), fresh);
    model.decode(tokens({4}), fresh);
    CHECK(different_bits(model.decode(tokens({6}), one), model.decode(tokens({6}), fresh)) == "");
    CHECK(other.length() == 4);
  }
}

TEST_CASE("kv_cache: a call that is refused leaves every layer as it was") {
  for (const char* const pattern : kPatterns) {
    const Gpt model = model_of(pattern);
    KvCache cache(model.config, 1, 4), untouched(model.config, 1, 4);
    for (KvCache* const c : {&cache, &untouched}) model.decode(tokens({1, 2, 3}), *c);
    CHECK(error_of([&] {
            model.decode(tokens({9, 9}), cache);
          }) == "kv_cache: 3 tokens and 2 new ones must fit the capacity 4");
    CHECK(error_of([&] {
            model.decode(Tensor::zeros({2, 1}, DType::i32), cache);
          }) == "kv_cache: batch must be 1, got 2");
    CHECK(error_of([&] { model.decode(tokens({11}), cache); }) ==
          "embedding: ids must be in [0, 11), got 11");
    CHECK(different_bits(model.decode(tokens({5}), cache), model.decode(tokens({5}), untouched)) ==
          "");
  }
}

TEST_CASE("kv_cache: rows need caches of their own") {
  const Gpt model = model_of("a");
  const Tensor ids = Tensor::zeros({2, 3}, DType::i32);
  KvCache one(model.config, 1, 8), other(model.config, 1, 8), two(model.config, 2, 8);
  const auto decode = [&](std::array<KvCache*, 2> rows) {
    return error_of([&] { model.decode(ids, rows); });
  };
  CHECK(decode({&one, &one}) ==
        "gpt: each row needs a cache of its own, got that of another row for row 1");
  CHECK(decode({nullptr, &one}) == "gpt: each row needs a cache of its own, got none for row 0");
  CHECK(decode({&one, &two}) == "kv_cache: batch must be 2, got 1");
  CHECK(error_of([&] { model.decode(ids, std::array{&one}); }) ==
        "gpt: each of the 2 rows needs a cache, got 1");
  CHECK(one.length() == 0);
  CHECK(decode({&one, &other}) == "no error");
}

TEST_CASE("kv_cache: errors name the rule") {
  Gpt model = model_of("a");
  KvCache cache(model.config, 1, 4);
  CHECK(error_of([&] {
          model.decode(Tensor::zeros({1, 0}, DType::i32), cache);
        }) == "gpt: decode needs ids of shape (batch, tokens) with at least 1 token, got [1, 0]");
  CHECK(error_of([&] { KvCache(model.config, 0, 4); }) ==
        "kv_cache: batch and capacity must be at least 1, got 0 and 4");
  const Tensor k = Tensor::zeros({1, 5, 2, 8});
  CHECK(error_of([&] { cache.append(0, k, k); }) ==
        "kv_cache: 0 tokens and 5 new ones must fit the capacity 4");
  CHECK(error_of([&] { cache.append(2, k, k); }) == "kv_cache: layer must be in [0, 2), got 2");
  CHECK(error_of([&] {
          cache.append(0, k, Tensor::zeros({1, 5, 1, 8}));
        }) ==
        "kv_cache: k and v must have shapes [1, 5, 2, 8] and [1, 5, 2, 8], got [1, 5, 2, 8] and "
        "[1, 5, 1, 8]");
  CHECK(error_of([&] { cache.truncate(1); }) == "kv_cache: length must be in [0, 0], got 1");
  CHECK(error_of([&] { cache.advance(-1); }) == "kv_cache: tokens must be at least 0, got -1");
  CHECK(error_of([&] { cache.advance(9); }) ==
        "kv_cache: 0 tokens and 9 new ones must fit the capacity 4");
  model.to(DType::bf16);
  CHECK(error_of([&] { model.decode(tokens({1}), cache); }) ==
        "kv_cache: dtype and device must be those of the model, bf16 on cpu, got f32 on cpu");
}

}  // namespace weft::kv_cache_test
