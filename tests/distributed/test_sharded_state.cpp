// The state of a sharded optimizer in files: any number of ranks reads it, in either form of master
// weights.
#include <doctest/doctest.h>

#include "weft/distributed/sharded_optimizer.h"
#include "weft/tests/parallel_support.h"
#include "weft/tests/ranks.h"
#include "weft/tests/temp_folder.h"

namespace weft::distributed::sharded_state_test {
namespace {

using test::Stack;

constexpr std::int64_t kBatch = 24;
constexpr double kCount = kBatch * 6;

}  // namespace

TEST_CASE("sharded_state: loads state from any number of ranks and form of master weights") {
  const test::TempFolder folder;
  constexpr auto kCopies = optim::MasterWeights::f32, kSplit = optim::MasterWeights::remainder;
  const auto file = [&](int ranks, int rank) {
    return folder / message("state-{}-{}.safetensors", ranks, rank);
  };
  const auto run = [&](World& w, int saved_by, int steps, bool save, optim::MasterWeights form) {
    Stack model(3, DType::bf16);
    const DeviceMesh mesh(w);
    Ddp ddp(model, mesh, {}, {.bucket_size = 200, .shard = true});
    ShardedOptimizer adam(ddp, optim::AdamWOptions{.lr = 1e-2, .master_weights = form});
    int first = 0;
    if (saved_by > 0) {
      first = 3;
      std::vector<std::string> states;
      for (int r = 0; r < saved_by; ++r) states.push_back(file(saved_by, r));
      model.load_state_dict(ShardFiles({folder / "model.safetensors"}).state_dict());
      adam.load_state(ShardFiles(states));
      CHECK(adam.steps() == 3);
    }
    for (int step = first; step < steps; ++step) {
      adam.wait();
      ddp.zero_grad();
      // Every rank has the whole batch, so that sums do not depend on the number of ranks.
      Tape tape;
      const Tensor loss = test::loss_of(model, test::rows_of(kBatch, 0, 1, DType::bf16));
      ddp.watch(tape);
      loss.backward(test::cotangent(loss, kCount * w.size()));
      adam.step(ddp.finish());
    }
    adam.wait();
    if (save) {
      save_slices(file(w.size(), w.rank()), adam.state());
      if (w.rank() == 0) io::save_safetensors(folder / "model.safetensors", model.state_dict());
    }
    return test::copies(model.parameters());
  };
  // No master weight of this model is a tie, so both forms have the same weights.
  std::vector<Tensor> want;
  run_ranks(1, [&](World& w) { want = run(w, 0, 6, false, kCopies); });
  for (const int ranks : {1, 2, 4})
    for (const auto saved : {kCopies, kSplit}) {
      run_ranks(ranks, [&](World& w) { run(w, 0, 3, true, saved); });
      for (const int others : {1, 2, 4})
        for (const auto loaded : {kCopies, kSplit})
          run_ranks(others, [&](World& w) {
            CHECK(test::same_bits(run(w, ranks, 6, false, loaded), want));
          });
    }
}

TEST_CASE("sharded_state: after loading all ranks have the same halves of ties") {
  // Every master weight in the file is a tie. The f32 form rounded half of them down, and no rank
  // may keep that value for another rank's slice.
  const test::TempFolder folder;
  const std::string file = folder / "state.safetensors";
  constexpr float kTie = 1 + 1.0f / 256;  // between 1 and 1 + 2^-7
  run_ranks(1, [&](World& w) {
    Stack model(2, DType::bf16);
    const DeviceMesh mesh(w);
    Ddp ddp(model, mesh, {}, {.bucket_size = 200, .shard = true});
    const ShardedOptimizer adam(ddp, optim::AdamWOptions{});
    const SlicedTensors state = adam.state();
    for (const auto& [name, slice] : state)
      if (name.ends_with(".master")) slice.values.fill_(kTie);
    save_slices(file, state);
  });
  for (const int ranks : {1, 2, 4})
    run_ranks(ranks, [&](World& w) {
      Stack model(2, DType::bf16);
      for (const Tensor& p : model.parameters()) p.fill_(kTie);  // 1 in bf16
      const DeviceMesh mesh(w);
      Ddp ddp(model, mesh, {}, {.bucket_size = 200, .shard = true});
      ShardedOptimizer adam(ddp,
                            optim::AdamWOptions{.master_weights = optim::MasterWeights::remainder});
      adam.load_state(ShardFiles({file}));
      adam.wait();
      for (const Tensor& p : model.parameters()) {
        CHECK(p.min().item() == 1 + 1.0 / 128);
        CHECK(p.max().item() == 1 + 1.0 / 128);
      }
      // The master weights are still those of the file.
      const double squares = adam.parameter_norm().item() * adam.parameter_norm().item();
      double count = 0;
      for (const Tensor& p : model.parameters()) count += static_cast<double>(p.numel());
      CHECK(squares == doctest::Approx(count * kTie * kTie).epsilon(1e-12));
      test::check_same_traces(w);
    });
}

}  // namespace weft::distributed::sharded_state_test
