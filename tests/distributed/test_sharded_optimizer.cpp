#include <doctest/doctest.h>

#include <limits>
#include <optional>

#include "weft/core/allocator.h"
#include "weft/distributed/sharded_optimizer.h"
#include "weft/nn/gpt.h"
#include "weft/tests/count_new.h"
#include "weft/tests/parallel_support.h"
#include "weft/tests/ranks.h"
#include "weft/tests/sanitized.h"
#include "weft/tests/temp_folder.h"

namespace weft::distributed::sharded_optimizer_test {
namespace {

using test::cotangent;
using test::Stack;

constexpr std::int64_t kBatch = 24;
constexpr double kCount = kBatch * 6;

void backward(const Stack& model, World& w, Ddp& ddp, int step) {
  Tape tape;
  const Tensor x = test::rows_of(kBatch, w.rank(), w.size(), model.layers[0].up.weight.dtype());
  const Tensor loss = test::loss_of(model, x.mul_(1 + 0.1 * step));
  ddp.watch(tape);
  loss.backward(cotangent(loss, kCount));
}

// Under a sanitizer a few steps show what all would: the later ones repeat the accesses.
int usual_steps() { return test::sanitized ? 5 : 20; }

struct Outcome {
  std::vector<Tensor> parameters;
  std::vector<double> gradient_norms;
  double parameter_norm = 0;
};

template <class Options>
Outcome train(World& w, bool shard, DType dtype, const Options& options, int steps = usual_steps(),
              std::int64_t bucket_size = 200) {
  Stack model(3, dtype);
  const DeviceMesh mesh(w);
  Ddp ddp(model, mesh, {},
          {.bucket_size = bucket_size, .shard = shard, .slice_multiple = kScaleBlock});
  const auto optimizer = make_optimizer(ddp, options);
  Outcome out;
  for (int step = 0; step < steps; ++step) {
    optimizer->wait();
    optimizer->zero_grad();
    backward(model, w, ddp, step);
    const optim::GradClip clip = ddp.finish(0.5);
    out.gradient_norms.push_back(clip.norm.item());
    optimizer->step(clip);
  }
  optimizer->wait();
  out.parameter_norm = optimizer->parameter_norm().item();
  out.parameters = test::copies(model.parameters());
  return out;
}

// The same with the optimizer of one process on the whole model.
template <class Options>
std::vector<Tensor> train_alone(World& w, DType dtype, const Options& options,
                                int steps = usual_steps()) {
  Stack model(3, dtype);
  const DeviceMesh mesh(w);
  Ddp ddp(model, mesh, {}, {.bucket_size = 200, .slice_multiple = kScaleBlock});
  std::unique_ptr<optim::Optimizer> plain;
  if constexpr (std::is_same_v<Options, optim::AdamWOptions>)
    plain = std::make_unique<optim::AdamW>(model.named_parameters(), options);
  else
    plain = std::make_unique<optim::Sgd>(model.named_parameters(), options);
  for (int step = 0; step < steps; ++step) {
    ddp.zero_grad();
    backward(model, w, ddp, step);
    plain->step(ddp.finish(0.5));
  }
  return test::copies(model.parameters());
}

}  // namespace

TEST_CASE("sharded_optimizer: gives the bits of the plain optimizer") {
  test::distributed_test({1, 2, 4, 8}, [](World& w) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      CAPTURE(name(dtype));
      const auto compare = [&](const auto& options) {
        const Outcome plain = train(w, false, dtype, options);
        const Outcome sharded = train(w, true, dtype, options);
        CHECK(test::same_bits(plain.parameters, train_alone(w, dtype, options)));
        CHECK(test::same_bits(sharded.parameters, plain.parameters));
        CHECK(sharded.gradient_norms == plain.gradient_norms);
        // Each rank sums its shard before the ranks are added, which is another order than one sum.
        CHECK(sharded.parameter_norm == doctest::Approx(plain.parameter_norm).epsilon(1e-12));
      };
      compare(optim::AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
      compare(optim::AdamWOptions{.lr = 1e-2,
                                  .weight_decay = 0.1,
                                  .master_weights = optim::MasterWeights::none,
                                  .groups = {{"bias", 0.5}, {"layers.1", 2, 0.2}}});
      compare(optim::AdamWOptions{.lr = 1e-2, .m_dtype = DType::bf16});
      if (dtype != DType::f16)
        compare(optim::AdamWOptions{
            .lr = 1e-2, .weight_decay = 0.1, .master_weights = optim::MasterWeights::remainder});
      compare(optim::SgdOptions{.lr = 1e-2, .momentum = 0.9, .nesterov = true});
      constexpr auto kStochastic = optim::Rounding::stochastic;
      compare(optim::AdamWOptions{.lr = 1e-2,
                                  .m_dtype = DType::bf16,
                                  .v_dtype = DType::bf16,
                                  .rounding = kStochastic,
                                  .seed = 4,
                                  .master_weights = optim::MasterWeights::none});
      compare(optim::AdamWOptions{.lr = 1e-2,
                                  .m_dtype = DType::e4m3,
                                  .v_dtype = DType::e4m3,
                                  .rounding = kStochastic,
                                  .seed = 4});
      compare(optim::SgdOptions{
          .lr = 1e-2, .master_weights = optim::MasterWeights::none, .rounding = kStochastic});
    }
  });
}

TEST_CASE("sharded_optimizer: bucket sizes change no bit") {
  test::distributed_test({2, 4}, [](World& w) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (const bool shard : {false, true}) {
        const optim::AdamWOptions adam{.lr = 1e-2, .weight_decay = 0.1};
        const Outcome one = train(w, shard, dtype, adam, 6, 1 << 20);
        for (const std::int64_t bucket_size : {0, 1, 200}) {
          const Outcome other = train(w, shard, dtype, adam, 6, bucket_size);
          CHECK(test::same_bits(other.parameters, one.parameters));
          // The norm is summed bucket by bucket in f64.
          for (std::size_t i = 0; i < one.gradient_norms.size(); ++i)
            CHECK(other.gradient_norms[i] == doctest::Approx(one.gradient_norms[i]).epsilon(1e-14));
        }
      }
  });
}

TEST_CASE("sharded_optimizer: externally changed parameters are used") {
  test::distributed_test({2, 4}, [](World& w) {
    const auto run = [&](bool shard, optim::MasterWeights form, bool skips) {
      Stack model(2, DType::bf16);
      const DeviceMesh mesh(w);
      Ddp ddp(model, mesh, {}, {.shard = shard});
      const auto adam =
          make_optimizer(ddp, optim::AdamWOptions{.lr = 1e-3, .master_weights = form});
      for (int step = 0; step < 4; ++step) {
        ddp.zero_grad();
        backward(model, w, ddp, step);
        const optim::GradClip clip = ddp.finish(1);
        // The step right after the external change.
        if (skips && step == 2) clip.scale.fill_(std::numeric_limits<double>::quiet_NaN());
        CHECK(adam->step(clip).skipped == (skips && step == 2));
        adam->wait();
        if (step == 1)
          for (const Tensor& p : model.parameters()) p.mul_(0.9);
      }
      return test::copies(model.parameters());
    };
    for (const auto form : {optim::MasterWeights::f32, optim::MasterWeights::remainder})
      for (const bool skips : {false, true})
        CHECK(test::same_bits(run(true, form, skips), run(false, form, skips)));
  });
}

TEST_CASE("sharded_optimizer: a forward pass may start before all parameters have arrived") {
  const auto run = [](World& w, bool by_part) {
    nn::GptConfig config;
    config.layers = 3;
    config.heads = 2;
    config.dim = 16;
    config.seq = 8;
    config.vocab = 20;
    config.mtp.depths = 1;
    nn::Gpt model(config);
    nn::init(model, 3);
    const DeviceMesh mesh(w);
    Ddp ddp(model, mesh, {}, {.bucket_size = 1000, .shard = true});
    ShardedOptimizer adam(ddp, optim::AdamWOptions{.lr = 1e-2});
    if (by_part)
      change_shard(model, [&](nn::Shard& s) {
        s.before_use = [&](const nn::Module& part) { adam.wait(part); };
      });
    for (int step = 0; step < 4; ++step) {
      if (!by_part) adam.wait();
      ddp.zero_grad();
      const Tensor ids =
          test::random({2, 8}, static_cast<std::uint64_t>(2 * step + w.rank()), DType::i64);
      Tape tape;
      const Tensor loss = model.losses(ids, ids).total();
      ddp.watch(tape);
      loss.backward(cotangent(loss, 32));
      adam.step(ddp.finish(1));
    }
    adam.wait();
    return test::copies(model.parameters());
  };
  // A slow link: a forward pass that does not wait reads the old parameters.
  WorldOptions slow;
  slow.link.latency_s = 3e-3;
  std::vector<Tensor> want;
  run_ranks(2, [&](World& w) {
    const std::vector<Tensor> got = run(w, false);
    if (w.rank() == 0) want = got;
  });
  run_ranks(
      2, [&](World& w) { CHECK(test::same_bits(run(w, true), want)); }, slow);
}

TEST_CASE("sharded_optimizer: bytes of state per parameter") {
  for (const int ranks : {1, 2, 4})
    run_ranks(ranks, [&](World& w) {
      // One tensor of 2^16 elements in one bucket: no rounding to size classes.
      struct One : nn::Module {
        Tensor weight;
        void visit(nn::Visitor& v) override { v("weight", weight); }
      };
      struct Kept {
        DType dtype;
        optim::MasterWeights form;
        std::int64_t bytes;  // bytes of optimizer state per parameter, summed over all ranks
      };
      for (const auto& [dtype, form, bytes] :
           {Kept{DType::f32, optim::MasterWeights::f32, 8},
            Kept{DType::bf16, optim::MasterWeights::f32, 12},
            Kept{DType::bf16, optim::MasterWeights::remainder, 10}}) {
        const auto live = [&](Category c) {
          return memory_stats().live_by_category[static_cast<int>(c)];
        };
        const DeviceMesh mesh(w);
        constexpr std::int64_t n = 1 << 16;
        One model;
        w.all().barrier().wait();
        const std::int64_t before[] = {live(Category::parameter), live(Category::gradient),
                                       live(Category::optimizer)};
        w.all().barrier().wait();
        {
          const CategoryScope scope(Category::parameter);
          model.weight = Tensor::ones({256, 256}, dtype).set_requires_grad();
        }
        Ddp ddp(model, mesh, {}, {.shard = true});
        const ShardedOptimizer adam(ddp, optim::AdamWOptions{.master_weights = form});
        w.all().barrier().wait();
        CHECK(live(Category::parameter) - before[0] ==
              n * static_cast<std::int64_t>(size_of(dtype)));
        CHECK(live(Category::gradient) - before[1] == n * 4);
        CHECK(live(Category::optimizer) - before[2] == n * bytes / w.size());
        w.all().barrier().wait();
      }
    });
}

TEST_CASE("sharded_optimizer: skipped steps make the same collectives") {
  test::distributed_test({2, 4}, [](World& w) {
    Stack model(3);
    const DeviceMesh mesh(w);
    // Nothing is in flight before finish(), so the test may change a gradient.
    Ddp ddp(model, mesh, {}, {.bucket_size = 200, .overlap = false, .shard = true});
    ShardedOptimizer adam(ddp, optim::AdamWOptions{.lr = 1e-2});
    std::vector<std::int64_t> counts;
    for (int step = 0; step < 3; ++step) {
      const std::int64_t before = w.recorder().count();
      ddp.zero_grad();
      backward(model, w, ddp, step);
      // One rank has a NaN, so no rank may update.
      if (step == 1 && w.rank() == 1) ddp.buckets()[0].slice.fill_(NAN);
      const std::vector<Tensor> old = test::copies(model.parameters());
      const optim::StepResult result = adam.step(ddp.finish(1));
      adam.wait();
      CHECK(result.skipped == (step == 1));
      CHECK(test::same_bits(model.parameters(), old) == (step == 1));
      counts.push_back(w.recorder().count() - before);
    }
    const auto buckets = static_cast<std::int64_t>(ddp.buckets().size());
    CHECK(counts == std::vector<std::int64_t>(3, 2 * buckets + 1));
    CHECK(adam.steps() == 2);
  });
}

TEST_CASE("sharded_optimizer: a warm step allocates nothing") {
  if (test::launched_world()) return;  // its messages allocate at any time
  for (const auto form : {optim::MasterWeights::f32, optim::MasterWeights::remainder}) {
    long before = 0, after = 0;
    run_ranks(2, [&](World& w) {
      Stack model(3, DType::bf16);
      const DeviceMesh mesh(w);
      Ddp ddp(model, mesh, {}, {.bucket_size = 200, .shard = true, .count_zeros = true});
      ShardedOptimizer adam(ddp, optim::AdamWOptions{.master_weights = form});
      const Tensor x = test::rows_of(kBatch, w.rank(), 2, DType::bf16);
      const auto step = [&] {
        adam.wait(model);
        adam.zero_grad();
        Tape tape;
        const Tensor loss = test::loss_of(model, x);
        ddp.watch(tape);
        loss.backward(cotangent(loss, kCount));
        adam.step(ddp.finish(1));
      };
      for (int i = 0; i < 5; ++i) step();
      w.all().barrier().wait();
      if (w.rank() == 0) before = test::news;
      w.all().barrier().wait();
      for (int i = 0; i < 5; ++i) step();
      w.all().barrier().wait();
      if (w.rank() == 0) after = test::news;
    });
    CHECK(after == before);
  }
}

TEST_CASE("sharded_optimizer: a fake rank counts the bytes that a real one sends") {
  for (const bool shard : {false, true}) {
    const auto world = fake_world(5, 16);
    const DeviceMesh mesh(*world, {.tp = 2});
    struct One : nn::Module {
      Tensor weight;
      void visit(nn::Visitor& v) override { v("weight", weight); }
    };
    One model;
    constexpr std::int64_t n = 1 << 14;
    model.weight = Tensor::empty({n}, DType::bf16, kMeta).set_requires_grad();
    Ddp ddp(model, mesh, {}, {.shard = shard});
    const auto adam = make_optimizer(ddp, optim::AdamWOptions{});
    Tape tape;
    const Tensor loss = sum(model.weight);
    ddp.watch(tape);
    loss.backward();
    adam->step(ddp.finish(1));
    adam->wait();
    // Seven eighths of the f32 sums, twice, or once and then of the bf16 weights; and the norm.
    const std::int64_t parts = shard ? 4 + 2 : 2 * 4;
    const std::int64_t norm = 2 * 15 * 2 * 8 / 16;
    CHECK(std::abs(world->stats().bytes_sent - (n * 7 / 8 * parts + norm)) <= norm);
  }
}

TEST_CASE("sharded_optimizer: a Ddp without shard is refused") {
  run_ranks(1, [](World& w) {
    Stack model(1);
    const DeviceMesh mesh(w);
    Ddp ddp(model, mesh);
    CHECK(test::error_of([&] { ShardedOptimizer(ddp, optim::AdamWOptions{}); }) ==
          "sharded_optimizer: the Ddp must be made with shard");
  });
}

}  // namespace weft::distributed::sharded_optimizer_test
