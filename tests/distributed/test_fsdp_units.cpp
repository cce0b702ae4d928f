// Which modules share a unit of Fsdp, and the collectives of a step.
#include <doctest/doctest.h>

#include <map>
#include <set>

#include "weft/distributed/flight_recorder.h"
#include "weft/distributed/fsdp_units.h"
#include "weft/distributed/parallel_optimizer.h"
#include "weft/nn/gpt.h"
#include "weft/nn/shard.h"
#include "weft/tests/parallel_support.h"
#include "weft/tests/ranks.h"

namespace weft::distributed::fsdp_units_test {
namespace {

struct Part : nn::Module {
  Tensor weight;
  void visit(nn::Visitor& v) override { v("weight", weight); }
};

// Parts of these sizes; one of size 0 has the weight of the first.
struct Parts : nn::Module {
  std::vector<Part> parts;
  explicit Parts(const std::vector<std::int64_t>& sizes) : parts(sizes.size()) {
    for (std::size_t i = 0; i < sizes.size(); ++i)
      parts[i].weight =
          sizes[i] ? nn::make_parameter({sizes[i]}, nn::Init::constant(1)) : parts[0].weight;
  }
  unsigned shard_members() const override { return nn::Shard::kBeforeUse; }
  void visit(nn::Visitor& v) override { v("parts", parts); }
};

std::vector<int> units(const std::vector<std::int64_t>& sizes) {
  Parts model(sizes);
  const NamedTensors parameters = model.named_parameters();
  std::vector<std::int64_t> own;
  for (const NamedTensor& p : parameters) own.push_back(p.tensor.numel());
  return fsdp_units(model, parameters, own);
}

using Units = std::vector<int>;

}  // namespace

TEST_CASE("fsdp units: neighbours that add at most a sixteenth share one") {
  CHECK(units({32}) == Units{0});
  CHECK(units({32, 32}) == Units{0, 1});
  CHECK(units({2, 32}) == Units{0, 0});
  CHECK(units({3, 32}) == Units{0, 1});
  CHECK(units({32, 2}) == Units{0, 0});
  CHECK(units({32, 3}) == Units{0, 1});
  CHECK(units({1, 1, 32, 32}) == Units{0, 0, 0, 1});
  CHECK(units({1, 32, 1, 1}) == Units{0, 0, 0, 1});
  CHECK(units({32, 2, 1, 32}) == Units{0, 0, 1, 1});
  CHECK(units({1, 16, 272}) == Units{0, 0, 0});
  CHECK(units({1, 16, 271}) == Units{0, 0, 1});
}

TEST_CASE("fsdp units: modules with a tied parameter have their own") {
  CHECK(units({2, 32, 0, 2}) == Units{0, 1, 1});
  CHECK(units({32, 1, 0, 32}) == Units{0, 1, 1});
}

namespace {

nn::GptConfig gpt(bool tied, nn::Recompute recompute, std::int64_t depths = 0) {
  nn::GptConfig c{.arch = tied ? nn::Arch::gpt2 : nn::Arch::llama,
                  .layers = 3,
                  .heads = 4,
                  .dim = 16,
                  .ffn = 64,
                  .seq = 8,
                  .vocab = 37};
  c.recompute = recompute;
  c.mtp.depths = depths;
  return c;
}

// A letter for each gather of a unit, told apart by size: e of the embedding or the head, b of a
// block, n of one with the norm or the positions, m of a depth of multi-token prediction.
std::string gathers(World& w, const Ddp& ddp, std::int64_t from) {
  std::map<std::int64_t, char> letters;
  for (const Ddp::Bucket& b : ddp.buckets()) {
    std::set<char> first;  // letters of the parameters' names
    for (const BucketEntry& e : b.layout.entries)
      first.insert(ddp.parameters()[e.parameter].name[0]);
    letters[b.layout.size] = first.size() > 1 ? 'n' : first.contains('h') ? 'e' : *first.begin();
  }
  std::string out;
  for (const FlightEntry& e : w.recorder().entries())
    if (e.number >= from && e.kind == Collective::all_gather) out += letters.at(e.out_elements);
  return out;
}

}  // namespace

TEST_CASE("fsdp units: what a step gathers, and in which order") {
  using enum nn::Recompute;
  // Forward, then backward, which finds the last two units here and does not read the embedding.
  struct Case {
    nn::GptConfig config;
    std::string gathers;
  };
  const Case cases[] = {{gpt(false, none), "ebbne bb"},
                        {gpt(false, full), "ebbne bb"},
                        {gpt(false, none, 2), "ebbne eme eme emenbb"},
                        {gpt(false, full, 2), "ebbne eme eme emenbb"},
                        {gpt(true, none), "enbne bn"},
                        {gpt(true, full), "enbne bn"},
                        {gpt(true, none, 2), "enbne nme nme emenbn"}};
  for (const Case& c : cases)
    test::distributed_test({2}, [&](World& w) {
      CAPTURE(c.config.tied());
      CAPTURE(c.config.mtp.depths);
      nn::Gpt model(c.config);
      const DeviceMesh mesh(w);
      const auto adam =
          make_optimizer(model, mesh, {}, optim::AdamWOptions{}, {.shard = true, .fsdp = true});
      change_shard(model, [&](nn::Shard& s) {
        s.before_use = [&](const nn::Module& part) { adam->wait(part); };
      });
      std::string want = c.gathers;
      std::erase(want, ' ');
      const Tensor ids = test::random({2, 8}, 3, DType::i32);
      for (int step = 0; step < 4; ++step) {
        adam->zero_grad();
        for (const bool last : {false, true}) {
          CAPTURE(step);
          CAPTURE(last);
          const std::int64_t before = w.recorder().count();
          Tape tape;
          const Tensor loss = model.losses(ids, ids).total();
          if (last) adam->watch(tape);
          loss.backward();
          // The first pass learns the order. After an evaluation its last unit is still here.
          if (last || step % 2 == 1) CHECK(gathers(w, *adam->ddp(), before) == want);
        }
        adam->step(adam->finish(1));
        if (step == 1) (void)model.losses(ids, ids).total();
      }
    });
}

}  // namespace weft::distributed::fsdp_units_test
