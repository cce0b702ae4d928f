// Multi-token prediction: what each depth sees and where it stands in the model.
#include <doctest/doctest.h>

#include <algorithm>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/nn/gpt.h"
#include "weft/nn/mtp.h"
#include "weft/tests/mtp_support.h"

namespace weft::mtp_test {
using namespace weft::mtp_test;
using nn::GptLosses;

TEST_CASE("M1: roll_left, plain and within the sequences of a packed row") {
  const auto rolled = [](const Tensor& x, const Packing& p = {}, double filler = 0) {
    return nn::roll_left(x, p, filler);
  };
  const Tensor plain = rolled(row({1, 2, 3, 4}));
  CHECK(test::different_bits(plain, row({2, 3, 4, 0})) == "");
  CHECK(sum(plain).item_int() == 9);
  CHECK(test::different_bits(rolled(row({1, 2, 3, 4, 5}), packing_of({0, 3, 5})),
                             row({2, 3, 0, 5, 0})) == "");
  // Empty sequences at the start, in the middle and at the end.
  CHECK(test::different_bits(rolled(row({1, 2, 3, 4, 5}), packing_of({0, 0, 2, 2, 2, 5, 5})),
                             row({2, 0, 4, 5, 0})) == "");
  // Sequences of one token, and a roll longer than a sequence.
  const Packing ones = packing_of({0, 1, 2, 5});
  const Tensor once = rolled(row({1, 2, 3, 4, 5}), ones, -100);
  CHECK(test::different_bits(once, row({-100, -100, 4, 5, -100})) == "");
  CHECK(test::different_bits(rolled(rolled(once, ones, -100), ones, -100),
                             row({-100, -100, -100, -100, -100})) == "");
  // Rows of a batch, strided memory, i64, positions as (tokens).
  const Tensor batch = Tensor::of({1, 2, 3, 4, 5, 6}, {2, 3}, DType::i64);
  const Tensor want = Tensor::of({2, 3, -100, 5, 6, -100}, {2, 3}, DType::i64);
  CHECK(test::different_bits(rolled(batch, {}, -100), want) == "");
  CHECK(test::different_bits(rolled(test::strided(batch), {}, -100), want) == "");
  Packing flat = packing_of({0, 3, 5});
  flat.positions = flat.positions.view({5});
  CHECK(test::different_bits(rolled(row({1, 2, 3, 4, 5}), flat), row({2, 3, 0, 5, 0})) == "");
  CHECK(rolled(Tensor::empty({2, 0}, DType::i32)).shape() == Shape{2, 0});
  CHECK(rolled(Tensor::empty({2, 3}, DType::i32, kMeta)).shape() == Shape{2, 3});
  CHECK(test::error_of([&] { rolled(batch, flat); }) ==
        "packing: the sequences must lie in one row, (1, tokens), got [2, 3]");
}

TEST_CASE("M1: two ranks roll the pieces that they hold of each packed sequence") {
  using Ints = std::vector<std::int32_t>;
  const Ints sequences[] = {{1, 2, 3, 4, 5, 6, 7, 8},
                            {11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22}};
  // The pieces of each sequence that a rank holds: either one from the front and its mirror image,
  // which balances causal attention, or one contiguous piece.
  struct Split {
    int pieces;
    std::vector<Ints> of_rank;
    std::vector<Ints> held, rolled;
  };
  const Split mirrored = {
      4,
      {{0, 3}, {1, 2}},
      {{1, 2, 7, 8, 11, 12, 13, 20, 21, 22}, {3, 4, 5, 6, 14, 15, 16, 17, 18, 19}},
      {{2, 3, 8, 0, 12, 13, 14, 21, 22, 0}, {4, 5, 6, 7, 15, 16, 17, 18, 19, 20}}};
  const Split neighbours = {
      2,
      {{0}, {1}},
      {{1, 2, 3, 4, 11, 12, 13, 14, 15, 16}, {5, 6, 7, 8, 17, 18, 19, 20, 21, 22}},
      {{2, 3, 4, 5, 12, 13, 14, 15, 16, 17}, {6, 7, 8, 0, 18, 19, 20, 21, 22, 0}}};
  for (const Split& split : {mirrored, neighbours})
    for (std::size_t rank = 0; rank < 2; ++rank) {
      Ints tokens, positions, bounds = {0}, behind;
      for (const Ints& s : sequences) {
        const auto length = static_cast<int>(s.size()) / split.pieces;
        const Ints& mine = split.of_rank[rank];
        for (const int piece : mine)
          for (int i = piece * length; i < (piece + 1) * length; ++i) {
            tokens.push_back(s[static_cast<std::size_t>(i)]);
            positions.push_back(i);
            // What the rank of the next piece sends: its first token. The last rank may hold both
            // pieces.
            const auto next = static_cast<std::size_t>(i + 1);
            const bool mine_goes_on = std::ranges::find(mine, piece + 1) != mine.end();
            const bool ends = (i + 1) % length == 0 && !mine_goes_on;
            behind.push_back(!ends ? -1 : next < s.size() ? s[next] : 0);
          }
        bounds.push_back(static_cast<std::int32_t>(tokens.size()));
      }
      CHECK(tokens == split.held[rank]);
      Packing part = packing_of(bounds);
      part.positions = row(positions);
      const Tensor ends = nn::piece_ends(part.positions);
      CHECK(test::different_bits(ends, ne(row(behind), -1)) == "");
      // Positions other than piece ends already have their result; piece ends hold the filler.
      const Tensor here = nn::roll_left(row(tokens), part, -100);
      CHECK(test::different_bits(eq(here, -100), ends) == "");
      CHECK(test::different_bits(where(ends, row(behind), here), row(split.rolled[rank])) == "");
    }
  CHECK(nn::piece_ends(Tensor::empty({0}, DType::i32)).shape() == Shape{1, 0});
  CHECK(nn::piece_ends(Tensor::empty({3}, DType::i32, kMeta)).shape() == Shape{1, 3});
}

TEST_CASE("mtp: a depth follows its formula on the tokens that it may see") {
  const GptConfig c = small(Arch::llama, 2);
  const Gpt model = make(c);
  const Tensor ids = tokens({2, 8}, 1);
  const Tensor h0 = model.hidden(ids);
  Tensor h = h0, later = ids;
  for (int depth = 1; depth <= 2; ++depth) {
    CAPTURE(depth);
    later = nn::roll_left(later);
    const nn::MtpDepth& d = model.mtp[static_cast<std::size_t>(depth - 1)];
    // Rows of the projection: its left half multiplies the embedding, its right half h.
    const Tensor left = d.eh_proj.weight.narrow(1, 0, 16),
                 right = d.eh_proj.weight.narrow(1, 16, 16);
    const Tensor x =
        add(d.enorm(model.embed(later)).matmul(left.t()), d.hnorm(h).matmul(right.t()));
    const Tensor want = d.norm(d.block(x, {.rotary = &*model.rotary}));
    h = model.mtp_trunk(depth, later, h).hidden;
    CHECK(test::mismatch(h, want, 1e-12) == "");
  }
  // Position i of depth d depends only on the tokens up to i + d.
  const auto deepest = [&](const Tensor& x) {
    Tensor out = model.hidden(x), next = x;
    for (int depth = 1; depth <= 2; ++depth)
      out = model.mtp_trunk(depth, next = nn::roll_left(next), out).hidden;
    return out;
  };
  const Tensor other = ids.clone();
  other.narrow(1, 5, 1).fill_(3);
  const Tensor a = deepest(ids), b = deepest(other);
  CHECK(test::mismatch(b.narrow(1, 0, 3), a.narrow(1, 0, 3), 1e-13) == "");
  CHECK(test::mismatch(b.narrow(1, 3, 1), a.narrow(1, 3, 1), 1e-3) != "");
}

TEST_CASE("mtp: learned positions belong to the token that is read") {
  const Gpt model = make(small(Arch::gpt2, 2));
  const Tensor ids = tokens({2, 6}, 21), h = test::random({2, 6, 16}, 22);
  const nn::MtpDepth& d = model.mtp[1];
  // Depth 2 at position i reads token i + 2 with position i + 2; the last two positions have none.
  const Tensor e = add(model.embed(ids), model.positions->weight.narrow(0, 2, 6));
  const Tensor both = cat({d.enorm(e), d.hnorm(h)}, 2);
  const Tensor want = d.norm(d.block(d.eh_proj(both)));
  const Tensor got = model.mtp_trunk(2, ids, h).hidden;
  CHECK(test::mismatch(got.narrow(1, 0, 4), want.narrow(1, 0, 4), 1e-12) == "");
  // A row as long as the table: there is no position after its end.
  const Tensor full = tokens({1, 8}, 23), wide = test::random({1, 8, 16}, 24);
  CHECK(model.mtp_trunk(2, full, wide).hidden.shape() == Shape{1, 8, 16});
}

TEST_CASE("mtp: a depth with a cache continues from its last position") {
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    GptConfig c = small(arch, 2);
    const Gpt model = make(c);
    const Tensor later = tokens({1, 6}, 25), h = test::random({1, 6, 16}, 26);
    const Tensor want = model.mtp_trunk(2, later, h).hidden;
    c.layers = 1;
    nn::KvCache cache(c, 1, 8, DType::f64);
    const NoGradGuard off;
    std::int64_t at = 0;
    for (const std::int64_t n : {3, 1, 2}) {
      const Tensor got =
          model.mtp_trunk(2, later.narrow(1, at, n), h.narrow(1, at, n), {}, &cache).hidden;
      CHECK(test::mismatch(got, want.narrow(1, at, n), 1e-12) == "");
      CHECK(cache.length() == (at += n));
    }
    // Rewinds after other tokens and decodes the first ones again.
    cache.truncate(2);
    static_cast<void>(model.mtp_trunk(2, tokens({1, 3}, 27), h.narrow(1, 2, 3), {}, &cache));
    cache.truncate(2);
    const Tensor again =
        model.mtp_trunk(2, later.narrow(1, 2, 4), h.narrow(1, 2, 4), {}, &cache).hidden;
    CHECK(test::mismatch(again, want.narrow(1, 2, 4), 1e-12) == "");
  }
}

TEST_CASE("mtp: one repeated layer equals several layers with the same weights") {
  GptConfig c = small(Arch::llama, 2);
  Gpt two = make(c);
  c.mtp.repeated = true;
  Gpt one = make(c);
  CHECK(one.mtp.size() == 1);
  StateDict state = two.state_dict();
  for (auto& [name, tensor] : state)
    if (name.starts_with("mtp.1.")) tensor.copy_(state.at("mtp.0." + name.substr(6)));
  const Tensor ids = tokens({2, 8}, 12), targets = tokens({2, 8}, 13);
  const auto total = [&](Gpt& m) {
    return gradients(m, [&] { return m.losses(ids, targets).total(); });
  };
  NamedTensors want = total(two);
  for (NamedTensor& w : want)
    for (const NamedTensor& other : want)
      if (w.name.starts_with("mtp.0.") && other.name == "mtp.1." + w.name.substr(6))
        w.tensor = w.tensor + other.tensor;
  std::erase_if(want, [](const NamedTensor& w) { return w.name.starts_with("mtp.1."); });
  CHECK(apart(total(one), want, 1e-12) == "");
}

TEST_CASE("mtp: each depth of a repeated layer drops elements of its own") {
  GptConfig c = small(Arch::llama, 2);
  c.dropout = 0.5;
  const Gpt two = make(c);
  c.mtp.repeated = true;
  const Gpt one = make(c);
  c.recompute = nn::Recompute::full;
  Gpt again = make(c);
  const Tensor ids = tokens({2, 8}, 14), h = test::random({2, 8, 16}, 15);
  const RandomScope scope({.seed = 3, .step = 2});
  const auto depth = [&](const Gpt& m, int d) { return m.mtp_trunk(d, ids, h).hidden; };
  // Without dropout both depths would be the same function of the same input.
  CHECK(test::different_bits(depth(one, 1), depth(one, 2)) != "");
  CHECK(test::different_bits(depth(one, 2), depth(one, 2)) == "");
  CHECK(test::different_bits(depth(one, 1), depth(two, 1)) == "");
  Gpt kept = nn::clone(one);
  const Tensor targets = tokens({2, 8}, 16);
  const auto total = [&](Gpt& m) {
    return gradients(m, [&] { return m.losses(ids, targets).total(); });
  };
  CHECK(apart(total(again), total(kept), 1e-12) == "");
}

TEST_CASE("mtp: parameter names, sizes and FLOPs") {
  for (const Arch arch : {Arch::gpt2, Arch::llama})
    for (const bool repeated : {false, true}) {
      GptConfig c = small(arch, 3);
      c.mtp.repeated = repeated;
      Gpt model(c);
      CHECK(model.parameter_count() == c.parameter_count());
      nn::init(model, 4);
      Gpt plain(small(arch, 0));
      nn::init(plain, 4);
      for (const auto& [name, tensor] : plain.state_dict())
        CHECK(test::different_bits(model.state_dict().at(name), tensor) == "");
      const Gpt copy = nn::clone(model);
      CHECK(copy.state_dict().size() == model.state_dict().size());
    }
  const Gpt model(small(Arch::llama, 2));
  const StateDict s = model.state_dict();
  for (const char* name : {"mtp.0.enorm.weight", "mtp.0.hnorm.weight", "mtp.1.norm.weight",
                           "mtp.1.block.mlp.down.weight"})
    CHECK(s.count(name) == 1);
  CHECK(s.at("mtp.1.eh_proj.weight").shape() == Shape{16, 32});
  CHECK(s.count("mtp.0.eh_proj.bias") == 0);
  // A depth costs one block, a projection from 2 dim to dim, and the head once more.
  const GptConfig none = small(Arch::llama, 0), one = small(Arch::llama, 1);
  GptConfig longer = none;
  longer.layers = 3;
  CHECK(one.flops_per_token() - longer.flops_per_token() == 6.0 * (2 * 16 * 16 + kVocab * 16));
  CHECK(one.parameter_count() - longer.parameter_count() == 2 * 16 * 16 + 3 * 16);
}

TEST_CASE("mtp: wrong configurations name the rule") {
  const auto error = [](const nn::MtpOptions& o) {
    GptConfig c = small(Arch::llama, 0);
    c.mtp = o;
    return test::error_of([&] { Gpt model(c); });
  };
  CHECK(error({.depths = 7}) == "no error");
  CHECK(
      error({.depths = 8}) ==
      "gpt: mtp depths must be below seq 8, as depth d predicts the token d + 1 places on, got 8");
  CHECK(error({.depths = -1}) == "gpt: mtp must be at least 0, got -1");
  CHECK(error({.depths = 1, .weight = -0.5}) == "gpt: mtp_weight must be at least 0, got -0.5");
  const Gpt model = make(small(Arch::llama, 1));
  const Tensor ids = tokens({1, 4}, 1);
  CHECK(test::error_of([&] { static_cast<void>(model.mtp_trunk(2, ids, model.hidden(ids))); }) ==
        "gpt: depth must be in [1, 1], got 2");
  const GptLosses l = model.losses(ids, ids);
  CHECK(test::error_of([&] { l.total({.main = l.main.count}); }) ==
        "losses: counts must be given for 1 depths, got 0");
}

}  // namespace weft::mtp_test
