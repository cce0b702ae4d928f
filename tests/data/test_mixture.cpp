#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/data/documents.h"
#include "weft/data/loader.h"
#include "weft/data/megatron.h"
#include "weft/data/mixture.h"
#include "weft/data/permutation.h"
#include "weft/data/token_windows.h"
#include "weft/io/json.h"
#include "weft/tests/data_support.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"
#include "weft/tokenizer/tokenizer.h"

namespace weft::mixture_test {
using namespace weft::data;
using test::error_of;
using test::Ints;
using test::ints;

namespace {

/// Rows of 4 tokens; those of source s count from 1000 s.
std::shared_ptr<const Dataset> source(int s, int rows) {
  Ints tokens = test::count_to(4 * rows + 1);
  for (auto& t : tokens) t += 1000 * s;
  return std::make_shared<TokenWindows>(TokenStream::of(tokens), 4);
}

Mixture three(std::uint64_t seed = 1) {
  return Mixture({{source(0, 40), 0.5}, {source(1, 7), 0.3}, {source(2, 25), 0.2}}, seed);
}

std::vector<std::int64_t> numbers(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(count));
  std::iota(out.begin(), out.end(), first);
  return out;
}

}  // namespace

TEST_CASE("permutation: every number once, in another order for every key and epoch") {
  for (const std::int64_t n : {1, 2, 3, 5, 16, 17, 64, 65, 1000, 4097}) {
    const Permutation p(n, {7, 3}), other(n, {7, 3}, 1), seed(n, {8, 3}), stream(n, {7, 4});
    std::vector<std::int64_t> order, sorted;
    bool same_epoch = true, same_seed = true, same_stream = true;
    for (std::int64_t i = 0; i < n; ++i) {
      order.push_back(p(i));
      same_epoch &= other(i) == p(i);
      same_seed &= seed(i) == p(i);
      same_stream &= stream(i) == p(i);
    }
    sorted = order;
    std::sort(sorted.begin(), sorted.end());
    CHECK(sorted == numbers(0, n));
    if (n < 16) continue;
    CHECK(!same_epoch);
    CHECK(!same_seed);
    CHECK(!same_stream);
  }
  const std::int64_t most = std::int64_t{1} << 62;
  CHECK(Permutation(most, {1, 2})(most - 1) < most);
  CHECK(error_of([] { Permutation(0, {1, 2}); }) == "permutation: n must be in [1, 2^62], got 0");
  CHECK(error_of([] {
          Permutation(3, {1, 2})(3);
        }) == "permutation: a number must be in [0, 3), got 3");
}

TEST_CASE("permutation: places look random") {
  // Chi-squared of where the first 4,096 of 100,003 numbers go, in 64 cells, and of the order of
  // neighbours: 63 and 1 degrees of freedom, far beyond the 0.1 % quantile only if not random.
  const Permutation p(100'003, {11, 5});
  std::vector<int> cells(64);
  int ascents = 0;
  for (std::int64_t i = 0; i < 4096; ++i) {
    ++cells[static_cast<std::size_t>(p(i) * 64 / 100'003)];
    ascents += p(i) < p(i + 1);
  }
  double chi = 0;
  for (const int n : cells) chi += (n - 64.0) * (n - 64.0) / 64.0;
  CHECK(chi < 110);
  CHECK(chi > 28);
  CHECK(std::abs(ascents - 2048) < 100);
}

TEST_CASE("mixture: shares are met to within a row in any first rows, for any weights") {
  const std::vector<std::vector<double>> all = {{1},
                                                {0.7, 0.3},
                                                {0.5, 0.3, 0.2},
                                                {5, 4, 3, 2, 1},
                                                {0.9, 0.05, 0.04, 0.009, 0.001},
                                                {1, 1, 1, 1, 1, 1, 1},
                                                {1e-9, 1, 1e9}};
  for (const auto& weights : all) {
    std::vector<Mixture::Source> sources;
    for (const double w : weights) sources.push_back({source(0, 3), w});
    const Mixture mixture(sources);
    double worst = 0, shares = 0;
    for (std::size_t s = 0; s < weights.size(); ++s) shares += mixture.share(s);
    CHECK(shares == 1);
    std::vector<std::int64_t> before = mixture.counts(0);
    for (std::int64_t row = 1; row <= 500; ++row) {
      const std::vector<std::int64_t> counts = mixture.counts(65'536 * 3 - 250 + row);
      std::int64_t sum = 0;
      for (std::size_t s = 0; s < weights.size(); ++s) {
        sum += counts[s];
        worst = std::max(worst,
                         std::abs(static_cast<double>(counts[s]) -
                                  mixture.share(s) * static_cast<double>(65'536 * 3 - 250 + row)));
      }
      CHECK(sum == 65'536 * 3 - 250 + row);
    }
    for (std::int64_t row = 0; row <= 1000; ++row) {
      const std::vector<std::int64_t> counts = mixture.counts(row);
      for (std::size_t s = 0; s < weights.size(); ++s)
        worst = std::max(worst, std::abs(static_cast<double>(counts[s]) -
                                         mixture.share(s) * static_cast<double>(row)));
    }
    CHECK(worst < 1);
  }
  // Of weights beyond all proportion each source still comes.
  CHECK(Mixture({{source(0, 3), 1e-9}, {source(0, 3), 1e9}}).share(0) == 1.0 / 65'536);
}

TEST_CASE("mixture: sources have epochs of their own and give each row once per epoch") {
  const Mixture mixture = three();
  Ints seen[3];
  for (const std::int32_t t : ints(mixture.rows(numbers(0, 80)).inputs))
    if (t % 4 == 0) seen[t / 1000].push_back(t % 1000 / 4);
  CHECK(mixture.counts(80) == std::vector<std::int64_t>{40, 24, 16});
  CHECK(seen[0].size() == 40);
  CHECK(seen[1].size() == 24);
  Ints first = seen[0], week(seen[1].begin(), seen[1].begin() + 7),
       next(seen[1].begin() + 7, seen[1].begin() + 14);
  CHECK(week != next);
  std::sort(first.begin(), first.end());
  std::sort(week.begin(), week.end());
  std::sort(next.begin(), next.end());
  CHECK(first == test::count_to(40));
  CHECK(week == test::count_to(7));
  CHECK(next == test::count_to(7));
  CHECK(ints(three(2).rows(numbers(0, 80)).inputs) != ints(mixture.rows(numbers(0, 80)).inputs));
  CHECK(mixture.rows({}).inputs.shape() == Shape{0, 4});
}

TEST_CASE(
    "mixture: batches do not depend on ranks or on a resume, and a position says what was seen") {
  const Mixture mixture = three();
  Loader whole(mixture, {.batch = 12, .seed = 9});
  for (int step = 0; step < 30; ++step) {
    Loader resumed(mixture, {.batch = 12, .seed = 9});
    resumed.set_position(whole.position());
    const Batch want = whole.next();
    for (const std::int64_t ranks : {1, 2, 3, 4}) {
      Ints inputs;
      for (std::int64_t r = 0; r < ranks; ++r) {
        const Ints part = ints(resumed.rows(12 / ranks * r, 12 / ranks).inputs);
        inputs.insert(inputs.end(), part.begin(), part.end());
      }
      CHECK(inputs == ints(want.inputs));
    }
    Ints in_batch[3];
    for (const std::int32_t t : ints(want.inputs)) in_batch[t / 1000].push_back(t);
    CHECK(std::abs(std::ssize(in_batch[0]) / 4 - 6) < 2);
    CHECK(std::abs(static_cast<double>(std::ssize(in_batch[1])) / 4 - 3.6) < 2);
  }
  const io::Json state = whole.state();
  CHECK(state.at("index").as_int() == 360);
  CHECK(state.at("source_1_rows").as_int() + state.at("source_2_rows").as_int() +
            state.at("source_3_rows").as_int() ==
        360);
  CHECK(state.at("source_2_rows").as_int() == 108);
  CHECK(state.at("source_2_tokens").as_int() == 29);
  const Mixture other({{source(0, 40), 0.5}, {source(1, 7), 0.25}, {source(2, 25), 0.25}}, 1);
  Loader refused(other, {.batch = 12, .seed = 9});
  CHECK(error_of([&] { refused.set_state(state); }) ==
        "loader: the saved position is for source_2_weight 19661, got 16384");
}

TEST_CASE("mixture: texts become batches as docs/data.md shows") {
  const test::TempFolder folder;
  const tokenizer::ByteTokenizer tokenizer;
  std::vector<std::string> texts;
  for (int i = 0; i < 20; ++i) texts.push_back(std::string(static_cast<std::size_t>(10 + i), 'a'));
  const auto books =
      std::make_shared<TokenWindows>(TokenStream::of_bytes(std::string(170, 'b')), 16);

  data::MegatronWriter out(folder / "web", data::MegatronWriter::width_for(tokenizer.vocab()));
  for (const std::string& text : texts) out.add(tokenizer.encode(text));
  out.commit();

  const data::TokenStream tokens = data::open_token_file(folder / "web.idx");
  const auto [training, held_out] = data::split_documents(tokens, 0.1, {});
  const auto web = std::make_shared<data::TokenWindows>(training, 16);
  const data::Mixture mixture({{web, 0.7}, {books, 0.3}}, /*seed=*/1);
  data::Loader loader(mixture, {.batch = 8});
  const data::Batch batch = loader.next();

  CHECK(batch.inputs.shape() == Shape{8, 16});
  CHECK(held_out.size() == 29);
  const Ints all = ints(batch.inputs);
  const auto from_web = std::count(all.begin(), all.end(), 'a') / 16;
  CHECK((from_web == 5 || from_web == 6));
}

TEST_CASE("mixture: wrong sources are refused") {
  CHECK(error_of([] { Mixture({}); }) ==
        "mixture: the number of sources must be in [1, 1024], got 0");
  CHECK(error_of([] {
          Mixture({{source(0, 3), 0}});
        }) == "mixture: a weight must be a number above 0, got 0");
  CHECK(error_of([] {
          Mixture({{source(0, 3), NAN}});
        }) == "mixture: a weight must be a number above 0, got nan");
  CHECK(error_of([] { Mixture({{nullptr, 1}}); }) == "mixture: a dataset must have at least 1 row");
  const auto wide = std::make_shared<TokenWindows>(TokenStream::of(test::count_to(20)), 8);
  CHECK(error_of([&] {
          Mixture({{source(0, 3), 1}, {wide, 1}}).rows(numbers(0, 4));
        }) ==
        "mixture: rows of all datasets must have one shape and dtype, got i32 [4, 4] and i32 [4, "
        "8]");
}

}  // namespace weft::mixture_test
