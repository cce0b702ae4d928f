#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "weft/core/error.h"
#include "weft/data/dataset.h"
#include "weft/data/loader.h"
#include "weft/data/token_windows.h"
#include "weft/io/json.h"
#include "weft/tests/data_support.h"
#include "weft/tests/support.h"

namespace weft::loader_test {
using namespace weft::data;
using test::count_to;
using test::error_of;
using test::Ints;
using test::ints;

TEST_CASE("loader: an epoch visits every window once and the next uses another order") {
  const TokenWindows windows(TokenStream::of(count_to(43)), 4);
  CHECK(windows.size() == 10);
  Loader loader(windows, {.batch = 5, .seed = 9});
  std::vector<Ints> orders;
  for (int epoch = 0; epoch < 3; ++epoch) {
    Ints order;
    for (int b = 0; b < 2; ++b) {
      CHECK(loader.state().at("epoch").as_int() == epoch);
      const Batch batch = loader.next();
      CHECK(batch.inputs.shape() == Shape{5, 4});
      const Ints in = ints(batch.inputs), target = ints(batch.targets);
      for (std::size_t i = 0; i < in.size(); ++i) {
        CHECK(target[i] == in[i] + 1);
        CHECK(in[i] == in[i / 4 * 4] + static_cast<std::int32_t>(i % 4));
      }
      for (std::size_t r = 0; r < 5; ++r) order.push_back(in[4 * r] / 4);
    }
    Ints sorted = order;
    std::sort(sorted.begin(), sorted.end());
    CHECK(sorted == count_to(10));
    orders.push_back(order);
  }
  CHECK(orders[0] != orders[1]);
  CHECK(orders[1] != orders[2]);
  Loader other(windows, {.batch = 10, .seed = 10});
  Ints order;
  for (const std::int32_t t : ints(other.next().inputs))
    if (t % 4 == 0) order.push_back(t / 4);
  CHECK(order != orders[0]);
}

TEST_CASE("loader: rows do not depend on how a batch is split even across epochs") {
  const TokenWindows windows(TokenStream::of(count_to(30)), 4);
  const auto make = [&] { return Loader(windows, {.batch = 6, .seed = 3}); };
  Loader whole = make(), ranks[] = {make(), make(), make()};
  for (int step = 0; step < 8; ++step) {
    const Batch want = whole.next();
    Ints inputs, targets;
    for (int r = 0; r < 3; ++r) {
      const Batch part = ranks[r].next(2 * r, 2);
      const Ints in = ints(part.inputs), out = ints(part.targets);
      inputs.insert(inputs.end(), in.begin(), in.end());
      targets.insert(targets.end(), out.begin(), out.end());
    }
    CHECK(inputs == ints(want.inputs));
    CHECK(targets == ints(want.targets));
  }
  CHECK(ranks[2].state().dump() == whole.state().dump());
}

TEST_CASE("loader: it continues from a saved position") {
  const TokenWindows windows(TokenStream::of(count_to(30)), 4);
  const auto make = [&] { return Loader(windows, {.batch = 3, .seed = 3}); };
  Loader straight = make(), resumed = make();
  for (int i = 0; i < 7; ++i) straight.advance();
  const std::string text = straight.state().dump();
  CHECK(test::without_checksum(straight.state()) ==
        R"({"epoch":3,"index":0,"seed":3,"seq":4,"tokens":30})");
  resumed.set_state(io::Json::parse(text));
  for (int i = 0; i < 5; ++i) CHECK(ints(resumed.next().inputs) == ints(straight.next().inputs));

  const auto refusal = [&](const char* key, std::int64_t value) {
    io::Json changed = io::Json::parse(text);
    changed.set(key, value);
    return error_of([&] { resumed.set_state(changed); });
  };
  CHECK(refusal("tokens", 31) == "loader: the saved position is for tokens 31, got 30");
  CHECK(refusal("seq", 8) == "loader: the saved position is for seq 8, got 4");
  CHECK(refusal("seed", 4) == "loader: the saved position is for seed 4, got 3");
  CHECK(refusal("rows_crc32c", 1) == "loader: the saved position is for data with other contents");
  CHECK(refusal("index", 7) ==
        "loader: the saved position (epoch 3, row 7) must lie in an epoch of 7 rows");
  CHECK(refusal("epoch", -1) ==
        "loader: the saved position (epoch -1, row 0) must lie in an epoch of 7 rows");
}

TEST_CASE("loader: a position belongs to the contents of the data") {
  std::vector<std::int32_t> tokens = count_to(30);
  const TokenWindows one(TokenStream::of(tokens), 4);
  tokens[11] = 5;
  const TokenWindows other(TokenStream::of(tokens), 4);
  Loader a(one, {.batch = 3}), b(other, {.batch = 3});
  CHECK(error_of([&] { b.set_state(a.state()); }) ==
        "loader: the saved position is for data with other contents");
  // Older versions saved no checksum.
  b.set_position(test::without_checksum(a.state()));
}

TEST_CASE("loader: many rows are ordered without a table, and resume at any step") {
  struct Numbers : Dataset {
    std::int64_t count;
    explicit Numbers(std::int64_t n) : count(n) {}
    std::int64_t size() const override { return count; }
    Batch rows(std::span<const std::int64_t> numbers) const override {
      const Tensor t = Tensor::from(numbers, {std::ssize(numbers)});
      return {t, t, {}};
    }
  };
  const auto next = [](Loader& loader) { return to_vector<std::int64_t>(loader.next().inputs); };
  // An epoch of more rows than a table takes visits each once.
  const Numbers data(70'001);
  Loader loader(data, {.batch = 10'000, .seed = 5});
  std::vector<std::int64_t> seen;
  while (loader.epoch() == 0 && seen.size() < 70'000) {
    const auto rows = next(loader);
    seen.insert(seen.end(), rows.begin(), rows.end());
  }
  CHECK(!std::is_sorted(seen.begin(), seen.end()));
  std::sort(seen.begin(), seen.end());
  CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
  CHECK(seen.back() <= 70'000);
  // 2^50 rows: an order in a table would need a petabyte.
  const Numbers many(std::int64_t{1} << 50);
  Loader straight(many, {.batch = 4, .seed = 5}), resumed(many, {.batch = 4, .seed = 5});
  for (int i = 0; i < 3; ++i) next(straight);
  resumed.set_position(straight.position());
  CHECK(next(straight) == next(resumed));
  io::Json old = straight.state();
  io::Json::Object members = old.take_members();
  std::erase_if(members, [](const io::JsonMember& m) { return m.key == "order"; });
  io::Json without = io::Json::object();
  for (io::JsonMember& m : members) without.set(m.key, m.value);
  CHECK(error_of([&] {
          resumed.set_state(without);
        }).find("of an older version, which ordered more than 65536 rows") != std::string::npos);
}

TEST_CASE("loader: the rows of the next batch are announced") {
  struct Announced : TensorDataset {
    using TensorDataset::TensorDataset;
    mutable std::vector<std::int64_t> coming, read;
    void will_read(std::span<const std::int64_t> numbers) const override {
      coming.assign(numbers.begin(), numbers.end());
    }
    Batch rows(std::span<const std::int64_t> numbers) const override {
      read.assign(numbers.begin(), numbers.end());
      return TensorDataset::rows(numbers);
    }
  };
  const Announced data(Tensor::arange(0, 10), Tensor::arange(0, 10));
  Loader loader(data, {.batch = 4});
  loader.next(1, 2);
  for (int step = 0; step < 5; ++step) {  // across epochs
    const std::vector<std::int64_t> announced = data.coming;
    CHECK(announced.size() == 2);
    loader.next(1, 2);
    CHECK(data.read == announced);
  }
}

TEST_CASE("loader: it refuses invalid options") {
  const auto refusal = [](int tokens, std::int64_t batch, std::int64_t seq) {
    return error_of([&] {
      const TokenWindows windows(TokenStream::of(count_to(tokens)), seq);
      Loader(windows, {.batch = batch});
    });
  };
  CHECK(refusal(100, 1, 256) ==
        "token windows: the data has 100 tokens, a sequence needs 257 (seq 256 + 1); use a shorter "
        "--seq or more data");
  CHECK(refusal(257, 1, 256) == "no error");
  CHECK(refusal(10, 0, 2) == "loader: batch must be at least 1, got 0");
  CHECK(refusal(10, 1, 0) == "token windows: seq must be at least 1, got 0");
  const TokenWindows windows(TokenStream::of(count_to(9)), 2);
  Loader loader(windows, {.batch = 4});
  CHECK(error_of([&] { loader.rows(3, 2); }) ==
        "loader: rows [3, 5) must lie in the global batch of 4");
  CHECK(ints(loader.rows(2, 0).inputs).empty());
  const std::int64_t outside[] = {4};
  CHECK(error_of([&] { windows.rows(outside); }) ==
        "token windows: a row must be in [0, 4), got 4");
}

TEST_CASE("loader: the last batch of an epoch is joined, dropped or kept") {
  const TensorDataset data(Tensor::arange(0, 7), Tensor::arange(0, 7));
  const auto loader_of = [&](LastBatch last, bool shuffle = false) {
    return Loader(data, {.batch = 3, .seed = 4, .last = last, .shuffle = shuffle});
  };
  using Rows = std::vector<double>;
  const auto next = [](Loader& loader) { return test::values(loader.next().targets); };

  Loader joined = loader_of(LastBatch::joined), dropped = loader_of(LastBatch::dropped),
         kept = loader_of(LastBatch::kept);
  for (Loader* loader : {&joined, &dropped, &kept}) {
    CHECK(next(*loader) == Rows{0, 1, 2});
    CHECK(loader->epoch() == 0);
    CHECK(next(*loader) == Rows{3, 4, 5});
  }
  CHECK(joined.epoch() == 0);
  CHECK(next(joined) == Rows{6, 0, 1});
  CHECK(joined.epoch() == 1);
  CHECK(next(joined) == Rows{2, 3, 4});

  CHECK(dropped.epoch() == 1);
  CHECK(next(dropped) == Rows{0, 1, 2});

  CHECK(kept.epoch() == 0);
  CHECK(kept.batch_rows() == 1);
  CHECK(error_of([&] { kept.rows(0, 2); }) ==
        "loader: rows [0, 2) must lie in the global batch of 1");
  CHECK(next(kept) == Rows{6});
  CHECK(kept.epoch() == 1);
  CHECK(kept.batch_rows() == 3);
  CHECK(next(kept) == Rows{0, 1, 2});

  CHECK(error_of([&] { Loader(data, {.batch = 8, .last = LastBatch::dropped}); }) ==
        "loader: batch must be at most the 7 rows of the dataset if the last batch is dropped, got "
        "8");

  // With shuffling: the same order for every mode, another one in each epoch, all rows if kept.
  Loader shuffled = loader_of(LastBatch::kept, true), also = loader_of(LastBatch::dropped, true);
  Rows epochs[2];
  for (Rows& rows : epochs)
    for (int batch = 0; batch < 3; ++batch) {
      const Rows some = next(shuffled);
      if (batch < 2) CHECK(next(also) == some);
      rows.insert(rows.end(), some.begin(), some.end());
    }
  CHECK(epochs[0] != epochs[1]);
  for (Rows& rows : epochs) {
    std::sort(rows.begin(), rows.end());
    CHECK(rows == Rows{0, 1, 2, 3, 4, 5, 6});
  }
}

TEST_CASE("loader: a saved position gives the batches that would have followed, in every mode") {
  const TensorDataset data(Tensor::arange(0, 10), Tensor::arange(0, 10));
  for (const LastBatch last : {LastBatch::joined, LastBatch::dropped, LastBatch::kept})
    for (int before = 0; before < 9; ++before) {
      const Loader::Options options{.batch = 4, .seed = 7, .last = last};
      Loader straight(data, options), resumed(data, options);
      for (int i = 0; i < before; ++i) straight.next();
      resumed.set_position(straight.position());
      CHECK(resumed.epoch() == straight.epoch());
      for (int i = 0; i < 6; ++i)
        CHECK(test::values(resumed.next().inputs) == test::values(straight.next().inputs));
      CHECK(error_of([&] { resumed.set_position("{"); }).starts_with("loader: the saved position"));
    }
}

TEST_CASE("loader: a position of another mode or order") {
  const TensorDataset data(Tensor::arange(0, 10), Tensor::arange(0, 10));
  Loader joined(data, {.batch = 4, .shuffle = false});
  joined.next();
  joined.next();
  Loader dropped(data, {.batch = 4, .last = LastBatch::dropped, .shuffle = false});
  dropped.set_position(joined.position());  // two rows of the epoch are left
  CHECK(dropped.epoch() == 1);
  CHECK(test::values(dropped.next().inputs) == std::vector<double>{0, 1, 2, 3});
  Loader shuffled(data, {.batch = 4});
  CHECK(error_of([&] { shuffled.set_position(joined.position()); }) ==
        "loader: the saved position is for shuffle off, got on");
  CHECK(error_of([&] { joined.set_position(shuffled.position()); }) ==
        "loader: the saved position is for shuffle on, got off");
}

TEST_CASE("loader: evaluation sees every target once and pads the rest") {
  for (const int n : {2, 6, 7, 8, 13, 14, 25}) {
    const TokenWindows windows(TokenStream::of(count_to(n)), 3, TokenWindows::Tail::padded);
    const EvalLoader loader(windows, 2);
    CAPTURE(n);
    CHECK(loader.batches() == (n - 1 + 5) / 6);
    Ints seen;
    for (std::int64_t b = 0; b < loader.batches(); ++b) {
      const Batch batch = loader.batch(b);
      CHECK(batch.inputs.shape() == Shape{2, 3});
      const Ints in = ints(batch.inputs), target = ints(batch.targets);
      for (std::size_t i = 0; i < in.size(); ++i) {
        if (target[i] == kIgnore) {
          CHECK(in[i] == 0);
          continue;
        }
        CHECK(target[i] == in[i] + 1);
        seen.push_back(in[i]);
      }
    }
    CHECK(seen == count_to(n - 1));
    CHECK(error_of([&] {
            loader.batch(loader.batches());
          }).starts_with("loader: evaluation batch must be in [0, "));
  }
  CHECK(error_of([] { TokenWindows(TokenStream::of(Ints{1}), 1, TokenWindows::Tail::padded); }) ==
        "token windows: held-out data must have at least 2 tokens, got 1");
}

}  // namespace weft::loader_test
