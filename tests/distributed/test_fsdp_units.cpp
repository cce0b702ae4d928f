// Which modules share a unit of Fsdp, and the collectives of a step.
#include <doctest/doctest.h>

#include <map>

#include "weft/distributed/fsdp_units.h"
#include "weft/distributed/parallel_optimizer.h"
#include "weft/nn/gpt.h"
#include "weft/nn/shard.h"
#include "weft/tests/parallel_support.h"

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

TEST_CASE("fsdp units: gathers and sums of a step") {
  struct Case {
    bool tied;
    nn::Recompute recompute;
    int gathers, sums;
  };
  using enum nn::Recompute;
  // The units. Untied: embedding, three blocks, the last with the norm, head. Tied: embedding and
  // head, three blocks, the first with the positions, the last with the norm.
  for (const Case& c : {Case{false, none, 5 + 3, 5},
                        {false, full, 5 + 3, 5},
                        {true, none, 5 + 3, 4},
                        {true, full, 5 + 3, 4}})
    test::distributed_test({2}, [&](World& w) {
      CAPTURE(c.tied);
      CAPTURE(static_cast<int>(c.recompute));
      nn::GptConfig config{.arch = c.tied ? nn::Arch::gpt2 : nn::Arch::llama,
                           .layers = 3,
                           .heads = 4,
                           .dim = 16,
                           .ffn = 64,
                           .seq = 8,
                           .vocab = 37};
      config.recompute = c.recompute;
      nn::Gpt model(config);
      const DeviceMesh mesh(w);
      const auto adam =
          make_optimizer(model, mesh, {}, optim::AdamWOptions{}, {.shard = true, .fsdp = true});
      change_shard(model, [&](nn::Shard& s) {
        s.before_use = [&](const nn::Module& part) { adam->wait(part); };
      });
      const Tensor ids = test::random({2, 8}, 3, DType::i32);
      for (int step = 0; step < 2; ++step) {
        const std::int64_t before = w.recorder().count();
        adam->zero_grad();
        Tape tape;
        const Tensor loss = model.losses(ids, ids).total();
        adam->watch(tape);
        loss.backward();
        adam->step(adam->finish(1));
        if (step == 0) continue;  // the order of uses is not known yet
        std::map<Collective, int> calls;
        for (const FlightEntry& e : w.recorder().entries())
          if (e.number >= before) ++calls[e.kind];
        CHECK(calls[Collective::all_gather] == c.gathers);
        CHECK(calls[Collective::reduce_scatter] == c.sums);
      }
    });
}

}  // namespace weft::distributed::fsdp_units_test
