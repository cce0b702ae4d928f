#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include "weft/core/parallel.h"
#include "weft/core/random.h"
#include "weft/distributed/world.h"
#include "weft/tests/support.h"

namespace weft::random_test {
namespace {

using test::different_bits;
using test::error_of;

using Draw = std::function<void(const Tensor&, const RandomKey&)>;
const Draw kUniform = [](const Tensor& t, const RandomKey& k) { uniform_(t, k, -2, 3); };
const Draw kNormal = [](const Tensor& t, const RandomKey& k) { normal_(t, k, 1, 2); };
const Draw kTruncated = [](const Tensor& t, const RandomKey& k) {
  truncated_normal_(t, k, 0, 1, -2, 1.5);
};
const Draw kBernoulli = [](const Tensor& t, const RandomKey& k) { bernoulli_(t, k, 0.3); };

std::vector<double> drawn(const Draw& draw, std::int64_t n, const RandomKey& key = {5, 6, 0}) {
  const Tensor t = Tensor::empty({n}, DType::f64);
  draw(t, key);
  std::vector<double> out(static_cast<std::size_t>(n));
  t.copy_to(out);
  return out;
}

struct Moments {
  double mean = 0, variance = 0, fourth = 0;
};
Moments moments(const std::vector<double>& x) {
  Moments m;
  const auto n = static_cast<double>(x.size());
  for (const double v : x) m.mean += v / n;
  for (const double v : x) {
    const double d = (v - m.mean) * (v - m.mean);
    m.variance += d / n;
    m.fourth += d * d / n;
  }
  return m;
}

// Distance of the sample's mean and variance from the true values, in standard errors.
double sigmas_of_mean(const Moments& m, double mean, double n) {
  return std::abs(m.mean - mean) / std::sqrt(m.variance / n);
}
double sigmas_of_variance(const Moments& m, double variance, double n) {
  return std::abs(m.variance - variance) / std::sqrt((m.fourth - m.variance * m.variance) / n);
}

constexpr std::int64_t kMany = 1'000'000;

}  // namespace

TEST_CASE("philox: the known answers of the Random123 distribution") {
  using Block = std::array<std::uint32_t, 4>;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr std::uint32_t kOnes = 0xffffffff;
  CHECK(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}) ==
        Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("philox: element i of a key is word i mod 4 of block i / 4") {
  const RandomKey key{0x299f31d0a4093822, 0x0370734413198a2e, 0};
  const std::uint64_t block = 0x05a308d3243f6a88;
  const auto words =
      philox4x32({0x243f6a88, 0x05a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0});
  for (std::uint64_t i = 0; i < 4; ++i) {
    CHECK(random_bits(key, 4 * block + i) == words[i]);
    CHECK(random_bits({key.seed, key.stream, 4 * block}, i) == words[i]);
  }
}

TEST_CASE("random: a shard draws what the whole draws at its position") {
  for (const Draw& draw : {kUniform, kNormal, kTruncated, kBernoulli}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      const Tensor whole = Tensor::empty({7, 5}, dtype);
      draw(whole, {3, 4, 0});
      const Tensor shards = Tensor::zeros({7, 5}, dtype);
      for (const auto& [row, rows] : {std::pair{0, 3}, {3, 1}, {4, 3}})
        draw(shards.alias({rows, 5}, {5, 1}, row * 5), {3, 4, static_cast<std::uint64_t>(row * 5)});
      CHECK(different_bits(shards, whole) == "");
    }
  }
}

TEST_CASE("random: seeds and streams give different numbers") {
  for (const Draw& draw : {kUniform, kNormal, kTruncated}) {
    const std::vector<double> a = drawn(draw, 64, {1, 1, 0});
    CHECK(a == drawn(draw, 64, {1, 1, 0}));
    CHECK(a != drawn(draw, 64, {2, 1, 0}));
    CHECK(a != drawn(draw, 64, {1, 2, 0}));
    CHECK(a != drawn(draw, 64, {1, std::uint64_t{1} << 32, 0}));
  }
}

TEST_CASE("random: the number of threads changes nothing") {
  const test::RestoreThreads restore;
  for (const Draw& draw : {kUniform, kNormal, kTruncated, kBernoulli}) {
    set_num_threads(1);
    const std::vector<double> one = drawn(draw, 100'003);
    set_num_threads(3);
    CHECK(drawn(draw, 100'003) == one);
    set_num_threads(4);
    CHECK(drawn(draw, 100'003) == one);
  }
}

TEST_CASE("random: uniform has the moments and bounds of a uniform distribution") {
  const std::vector<double> x = drawn(kUniform, kMany);  // [-2, 3)
  const Moments m = moments(x);
  CHECK(sigmas_of_mean(m, 0.5, kMany) < 5);
  CHECK(sigmas_of_variance(m, 25.0 / 12, kMany) < 5);
  CHECK(*std::min_element(x.begin(), x.end()) >= -2);
  CHECK(*std::max_element(x.begin(), x.end()) < 3);
}

TEST_CASE("random: normal has the moments and tails of a normal distribution") {
  const std::vector<double> x = drawn(kNormal, kMany);  // mean 1, std 2
  const Moments m = moments(x);
  CHECK(sigmas_of_mean(m, 1, kMany) < 5);
  CHECK(sigmas_of_variance(m, 4, kMany) < 5);
  CHECK(m.fourth / (m.variance * m.variance) == doctest::Approx(3).epsilon(0.02));
  double beyond = 0, product = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    beyond += std::abs(x[i] - 1) > 2 * 1.959964;
    if (i % 2) product += (x[i - 1] - 1) * (x[i] - 1) / 4;
  }
  const double n = kMany;
  CHECK(std::abs(beyond / n - 0.05) < 5 * std::sqrt(0.05 * 0.95 / n));
  CHECK(std::abs(product / std::sqrt(n / 2)) < 5);  // the two of a pair are uncorrelated
}

TEST_CASE("random: truncated normal stays within its bounds and has the right moments") {
  const std::vector<double> x = drawn(kTruncated, kMany);  // N(0, 1) in [-2, 1.5]
  CHECK(*std::min_element(x.begin(), x.end()) >= -2);
  CHECK(*std::max_element(x.begin(), x.end()) <= 1.5);
  const auto density = [](double v) { return std::exp(-v * v / 2) / std::sqrt(2 * M_PI); };
  const auto below = [](double v) { return 0.5 * std::erfc(-v / std::sqrt(2)); };
  const double z = below(1.5) - below(-2), mean = (density(-2) - density(1.5)) / z;
  const double variance = 1 + (-2 * density(-2) - 1.5 * density(1.5)) / z - mean * mean;
  const Moments m = moments(x);
  CHECK(sigmas_of_mean(m, mean, kMany) < 5);
  CHECK(sigmas_of_variance(m, variance, kMany) < 5);
}

TEST_CASE("random: truncated normal keeps its precision far out in either tail") {
  for (const double side : {-1.0, 1.0}) {
    const Tensor t = Tensor::empty({20'000}, DType::f64);
    truncated_normal_(t, {1, 2, 0}, 0, 1, side > 0 ? 9 : -12, side > 0 ? 12 : -9);
    std::vector<double> x(20'000);
    t.copy_to(x);
    const Moments m = moments(x);
    // Beyond 9 the density falls like exp(-9 x): the mean excess is 1/9 - 2/9^3 + 10/9^5 ...
    CHECK(std::abs(side * m.mean - 9 - 0.108536) < 0.004);
    CHECK(m.variance == doctest::Approx(0.0113).epsilon(0.1));
  }
}

TEST_CASE("random: bernoulli has the given rate") {
  const std::vector<double> x = drawn(kBernoulli, kMany);
  double ones = 0;
  for (const double v : x) {
    REQUIRE((v == 0 || v == 1));
    ones += v;
  }
  CHECK(std::abs(ones / kMany - 0.3) < 5 * std::sqrt(0.3 * 0.7 / kMany));
  const Tensor never = Tensor::empty({100}, DType::boolean), always = Tensor::empty({100});
  bernoulli_(never, {1, 1, 0}, 0);
  bernoulli_(always, {1, 1, 0}, 1);
  CHECK(different_bits(never, Tensor::zeros({100}, DType::boolean)) == "");
  CHECK(different_bits(always, Tensor::ones({100})) == "");
}

TEST_CASE("random: unkeyed draws follow the seed") {
  manual_seed(9);
  const Tensor a = rand_normal({4, 3}, 1, 2, DType::f64), b = rand_normal({4, 3}, 1, 2, DType::f64);
  manual_seed(9);
  const Tensor c = rand_normal({4, 3}, 1, 2, DType::f64);
  CHECK(different_bits(a, c) == "");
  CHECK(different_bits(a, b) != "");
  manual_seed(10);
  CHECK(different_bits(a, rand_normal({4, 3}, 1, 2, DType::f64)) != "");
  const Tensor u = rand_uniform({1000}, 2, 4);
  std::vector<double> x(1000);
  u.copy_to(x);
  CHECK(u.dtype() == DType::f32);
  CHECK(*std::min_element(x.begin(), x.end()) >= 2);
  CHECK(*std::max_element(x.begin(), x.end()) < 4);
}

namespace {

// The keys of the first draws of a new thread.
std::vector<RandomKey> keys_of_a_thread(int n = 3) {
  std::vector<RandomKey> keys;
  std::thread([&] {
    for (int i = 0; i < n; ++i) keys.push_back(next_random_key());
  }).join();
  return keys;
}

bool same(const RandomKey& a, const RandomKey& b) {
  return a.seed == b.seed && a.stream == b.stream;
}

}  // namespace

TEST_CASE("random: manual_seed covers threads and each thread draws its own numbers") {
  manual_seed(9);
  std::vector<RandomKey> all = keys_of_a_thread();
  for (const RandomKey& k : keys_of_a_thread()) all.push_back(k);
  for (int i = 0; i < 3; ++i) all.push_back(next_random_key());
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(all[i].seed == 9);
    for (std::size_t j = 0; j < i; ++j) CHECK_FALSE(same(all[i], all[j]));
  }
  // The same again, and in a thread that already existed.
  std::vector<RandomKey> again;
  std::atomic<bool> seeded{false}, started{false};
  std::thread early([&] {
    next_random_key();
    started = true;
    while (!seeded) std::this_thread::yield();
    for (int i = 0; i < 3; ++i) again.push_back(next_random_key());
  });
  while (!started) std::this_thread::yield();
  manual_seed(9);
  seeded = true;
  early.join();
  for (std::size_t i = 0; i < 3; ++i) CHECK(same(again[i], all[i]));
  // Another seed, other numbers.
  manual_seed(10);
  CHECK(keys_of_a_thread()[0].seed == 10);
}

TEST_CASE("random: a thread that seeds itself draws the common numbers and keeps its seed") {
  manual_seed(4);
  const RandomKey here[] = {next_random_key(), next_random_key()};
  std::vector<RandomKey> there;
  std::atomic<int> turn{0};
  std::thread seeded([&] {
    manual_seed(4);
    there.push_back(next_random_key());
    turn = 1;
    while (turn < 2) std::this_thread::yield();
    there.push_back(next_random_key());
  });
  while (turn < 1) std::this_thread::yield();
  manual_seed(5);
  turn = 2;
  seeded.join();
  for (const int i : {0, 1}) CHECK(same(there[static_cast<std::size_t>(i)], here[i]));
  CHECK(next_random_key().seed == 5);
}

TEST_CASE("random: ranks as threads draw the same numbers as ranks as processes") {
  manual_seed(7);
  const RandomKey here[] = {next_random_key(), next_random_key()};
  distributed::run_ranks(3, [&](distributed::World& w) {
    CHECK(same(next_random_key(), here[0]));
    if (w.rank() == 1) manual_seed(8);
    w.all().barrier().wait();
    if (w.rank() != 1) CHECK(same(next_random_key(), here[1]));
  });
}

TEST_CASE("random: a recomputed region replays the numbers of its thread") {
  manual_seed(6);
  std::string difference = "not run";
  std::thread([&] {
    const RandomSnapshot snapshot = RandomSnapshot::take();
    const Tensor first = rand_normal({5});
    const Tensor next = rand_normal({5});
    {
      const RandomReplay replay(snapshot);
      difference = different_bits(rand_normal({5}), first);
    }
    CHECK(different_bits(rand_normal({5}), next) != "");
  }).join();
  CHECK(difference == "");
}

TEST_CASE("random: a permutation is a bijection and depends on its key") {
  const Tensor p = permutation(1000, {1, 2, 0}), q = permutation(1000, {1, 3, 0});
  CHECK(p.dtype() == DType::i64);
  CHECK(different_bits(p, permutation(1000, {1, 2, 0})) == "");
  CHECK(different_bits(p, q) != "");
  std::vector<int> seen(1000);
  for (int i = 0; i < 1000; ++i) ++seen.at(static_cast<std::size_t>(p.data<std::int64_t>()[i]));
  CHECK(seen == std::vector<int>(1000, 1));
  CHECK(permutation(0, {}).shape() == Shape{0});
  // Each of the 6 orders of 3 items is equally likely.
  std::vector<double> counts(6);
  for (std::uint64_t k = 0; k < 60'000; ++k) {
    const Tensor t = permutation(3, {7, k, 0});
    const std::int64_t* v = t.data<std::int64_t>();
    ++counts[static_cast<std::size_t>(2 * v[0] + (v[1] > v[2]))];
  }
  for (const double c : counts) CHECK(std::abs(c - 10'000) < 5 * std::sqrt(60'000 * 5.0 / 36));
}

TEST_CASE("random: multinomial draws with the given frequencies") {
  const Tensor w = Tensor::of({1, 0, 3, 4, 0, 5, 0, 0}, {2, 4});
  const Tensor draws = multinomial(w, 100'000, {1, 2, 0});
  CHECK(draws.shape() == Shape{2, 100'000});
  CHECK(draws.dtype() == DType::i64);
  for (const int row : {0, 1}) {
    std::vector<double> count(4), weight(4);
    double total = 0;
    for (int i = 0; i < 4; ++i) {
      weight[static_cast<std::size_t>(i)] = w.data<float>()[row * 4 + i];
      total += weight[static_cast<std::size_t>(i)];
    }
    for (std::int64_t i = 0; i < 100'000; ++i)
      ++count.at(static_cast<std::size_t>(draws.data<std::int64_t>()[row * 100'000 + i]));
    for (std::size_t i = 0; i < 4; ++i) {
      const double p = weight[i] / total;
      if (p == 0)
        CHECK(count[i] == 0);
      else
        CHECK(std::abs(count[i] - 1e5 * p) <= 5 * std::sqrt(1e5 * p * (1 - p)));
    }
  }
  CHECK(multinomial(Tensor::of({0, 0, 1}, {3}), 5, {}).shape() == Shape{5});
  CHECK(multinomial(Tensor::of({0, 0, 1}, {3}), 1, {}).item_int() == 2);
  const Tensor planned = multinomial(Tensor::empty({2, 3}, DType::f32, kMeta), 4, {});
  CHECK(planned.shape() == Shape{2, 4});
  CHECK(planned.device() == kMeta);
}

TEST_CASE("random: a scope keys by layer, step, micro-batch and global position") {
  const std::uint64_t layer = stream_of("blocks.0.drop");
  CHECK(layer == stream_of("blocks.0.drop"));
  CHECK(layer != stream_of("blocks.1.drop"));
  const auto key = [&](const RandomState& s, std::uint64_t stream) {
    const RandomScope scope(s);
    return RandomScope::key_for(stream, 40, 4);
  };
  const RandomState base{.seed = 3, .step = 5, .micro_batch = 1};
  const RandomKey k = key(base, layer);
  CHECK(k.seed == 3);
  CHECK(k.first == 0);
  CHECK(key(base, layer).stream == k.stream);
  CHECK(key({.seed = 4, .step = 5, .micro_batch = 1}, layer).seed == 4);
  CHECK(key({.seed = 3, .step = 6, .micro_batch = 1}, layer).stream != k.stream);
  CHECK(key({.seed = 3, .step = 5, .micro_batch = 2}, layer).stream != k.stream);
  CHECK(key({.seed = 3, .step = 1, .micro_batch = 5}, layer).stream != k.stream);
  CHECK(key(base, layer + 1).stream != k.stream);
  const RandomKey second = key({.seed = 3, .step = 5, .micro_batch = 1, .use = 1}, layer);
  CHECK(second.stream != k.stream);
  CHECK(key({.seed = 3, .step = 5, .micro_batch = 1, .use = 2}, layer).stream != second.stream);
  // A rank that holds rows from 2 on and tokens from 6 on starts at their elements.
  const RandomKey shard =
      key({.seed = 3, .step = 5, .micro_batch = 1, .first_global_row = 2, .seq_offset = 6}, layer);
  CHECK(shard.stream == k.stream);
  CHECK(shard.first == 2 * 40 + 6 * 4);
}

TEST_CASE("random: scopes nest and outside a scope the running counter continues") {
  CHECK(RandomScope::current() == nullptr);
  {
    const RandomScope outer({.seed = 1});
    {
      const RandomScope inner({.seed = 2});
      CHECK(RandomScope::current()->seed == 2);
    }
    CHECK(RandomScope::current()->seed == 1);
  }
  CHECK(RandomScope::current() == nullptr);
  manual_seed(1);
  const RandomKey a = RandomScope::key_for(7, 1, 1), b = RandomScope::key_for(7, 1, 1);
  CHECK(a.stream != b.stream);
  manual_seed(1);
  CHECK(next_random_key().stream == a.stream);
}

TEST_CASE("random: the meta device draws nothing") {
  const Tensor t = Tensor::empty({3, 4}, DType::f32, kMeta);
  CHECK(uniform_(t, {}).same(t));
  CHECK(normal_(t, {}).is_meta());
}

TEST_CASE("random: errors name the rule") {
  const Tensor t = Tensor::empty({4});
  CHECK(error_of([&] { uniform_(t, {}, 2, 1); }) == "uniform_: low must be at most high 1, got 2");
  CHECK(error_of([&] { normal_(t, {}, 0, -1); }) == "normal_: std must be at least 0, got -1");
  CHECK(error_of([&] { truncated_normal_(t, {}, 0, 1, 2, 2); }) ==
        "truncated_normal_: low must be below high 2, got 2");
  CHECK(error_of([&] { truncated_normal_(t, {}, 0, 0, -2, 2); }) ==
        "truncated_normal_: std must be above 0, got 0");
  CHECK(error_of([&] { bernoulli_(t, {}, 1.5); }) == "bernoulli_: p must be in [0, 1], got 1.5");
  CHECK(error_of([&] { normal_(test::strided(t), {}); }) ==
        "normal_: the tensor must be contiguous, got strides [2]");
  CHECK(error_of([] { permutation(-1, {}); }) == "permutation: n must be at least 0, got -1");
  CHECK(error_of([] {
          multinomial(Tensor::ones({1, 2, 3}), 1, {});
        }) == "multinomial: weights must have shape (n) or (rows, n), got [1, 2, 3]");
  CHECK(error_of([] { multinomial(Tensor::ones({3}), -1, {}); }) ==
        "multinomial: count must be at least 0, got -1");
  CHECK(error_of([] {
          multinomial(Tensor::of({1, -1}, {2}), 1, {});
        }) == "multinomial: weights must be finite and at least 0, got -1");
  CHECK(error_of([] {
          multinomial(Tensor::of({1, NAN}, {2}), 1, {});
        }) == "multinomial: weights must be finite and at least 0, got nan");
  CHECK(error_of([] {
          multinomial(Tensor::of({0, 0}, {2}), 1, {});
        }) == "multinomial: a row of weights must have a positive sum, got 0");
}

TEST_CASE("random: draws without a key follow the counter of the thread") {
  manual_seed(5);
  const Tensor a = rand({3, 4}), b = randn({5}, DType::f64), c = randint(-2, 3, {200}),
               d = randperm(9);
  manual_seed(5);
  CHECK(test::different_bits(a, uniform_(Tensor::empty({3, 4}), next_random_key())) == "");
  CHECK(test::different_bits(b, normal_(Tensor::empty({5}, DType::f64), next_random_key())) == "");
  CHECK(test::different_bits(c, randint(-2, 3, {200})) == "");
  CHECK(test::different_bits(d, permutation(9, next_random_key())) == "");
  CHECK(c.dtype() == DType::i64);
  CHECK(c.min().item() == -2);
  CHECK(c.max().item() == 2);
  CHECK(randint(INT64_MIN, INT64_MAX, {64}).abs().min().item() > 0x1p40);
  CHECK(test::error_of([] { randint(2, 2, {1}); }) ==
        "randint: low must be below high, got 2 and 2");
}

}  // namespace weft::random_test
