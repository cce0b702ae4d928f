// Steps of the trainers' sessions on emulated GPUs: ranks that share one, and ranks with one each
// over an emulated NCCL.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "weft/core/random.h"
#include "weft/distributed/nccl_world.h"
#include "weft/tests/examples/gpt_step.h"
#include "weft/tests/support.h"

namespace weft::examples::rank_steps_test {
namespace {

using distributed::World;

constexpr std::int64_t kRows = 4, kTokens = 8, kVocab = 37;

GptOptions options_of(bool nccl, bool zero) {
  GptOptions o;
  o.model.layers = 1;
  o.model.heads = 2;
  o.model.dim = 16;
  o.model.seq = kTokens;
  o.model.vocab = kVocab;
  o.batch = kRows;
  o.micro_batch = 1;
  o.steps = 20;
  o.machine.device = "cuda";
  o.parallel.backend = nccl ? train::Backend::nccl : train::Backend::thread;
  o.parallel.zero = zero;
  return o;
}

data::Batch batch_of(std::int64_t step) {
  const Tensor text = Tensor::empty({kRows, kTokens + 1});
  uniform_(text, {17, static_cast<std::uint64_t>(step), 0}, 0, kVocab);
  const Tensor ids = text.to(DType::i32);
  return {ids.narrow(1, 0, kTokens).clone(), ids.narrow(1, 1, kTokens).clone()};
}

// f(train step, world of the hosts) on two ranks.
template <class F>
void over_two_ranks(const GptOptions& o, F f) {
  distributed::run_ranks(2, [&](World& host) {
    const bool nccl = o.parallel.backend == train::Backend::nccl;
    const Device gpu{Device::Kind::cuda, static_cast<std::int16_t>(nccl ? host.rank() : 0)};
    cuda::Stream stream = cuda::Stream::take(gpu);
    {
      const cuda::StreamScope scope(stream);
      const auto gpus = nccl ? distributed::nccl_world(host, gpu) : nullptr;
      const train::Ranks ranks(nccl ? *gpus : host, host, gpu, o);
      GptStep gpt_step(o, ranks);
      f(gpt_step.step, host);
    }
    stream.give_back();
  });
}

// One step on this rank's half of the batch.
train::StepResult make_step(train::TrainStep& step, std::int64_t number, const World& host) {
  return step(number, batch_of(number).narrow(host.rank() * kRows / 2, kRows / 2));
}

// f(nccl, zero) for all four combinations.
template <class F>
void each_form(F f) {
  for (const bool nccl : {false, true})
    for (const bool zero : {false, true}) {
      CAPTURE(nccl);
      CAPTURE(zero);
      f(nccl, zero);
    }
}

}  // namespace

TEST_CASE("rank steps: no host waits for a GPU and all ranks get the same numbers") {
  std::vector<double> first;  // for each combination, after six steps
  each_form([&](bool nccl, bool zero) {
    double losses[2] = {}, norms[2] = {};
    over_two_ranks(options_of(nccl, zero), [&](train::TrainStep& train_step, World& host) {
      std::vector<train::StepResult> results;  // destroying a pending number waits for it
      for (std::int64_t step = 1; step <= 3; ++step)
        results.push_back(make_step(train_step, step, host));
      host.all().barrier().wait();
      const std::int64_t syncs = cuda::host_syncs();  // of both ranks
      host.all().barrier().wait();
      for (std::int64_t step = 4; step <= 6; ++step)
        results.push_back(make_step(train_step, step, host));
      host.all().barrier().wait();
      CHECK(cuda::host_syncs() == syncs);
      host.all().barrier().wait();
      losses[host.rank()] = results.back().loss();
      norms[host.rank()] = results.back().grad_norm();
    });
    CHECK(losses[0] == losses[1]);
    CHECK(norms[0] == norms[1]);
    CHECK(losses[0] > 0);
    first.push_back(losses[0]);
  });
  for (const double loss : first) CHECK(loss == first[0]);
}

TEST_CASE("rank steps: a loss that is not finite on one rank leaves all weights unchanged") {
  each_form([](bool nccl, bool zero) {
    over_two_ranks(options_of(nccl, zero), [](train::TrainStep& train_step, World& host) {
      make_step(train_step, 1, host);
      train_step.optimizer().wait();
      if (host.rank() == 1)
        train_step.model().parameters().front().flatten().narrow(0, 0, 1).fill_(
            std::numeric_limits<double>::quiet_NaN());
      std::vector<Tensor> before;
      for (const Tensor& p : train_step.model().parameters()) before.push_back(p.to(kCpu));
      const train::StepResult result = make_step(train_step, 2, host);
      train_step.optimizer().wait();
      CHECK(!std::isfinite(result.loss()));
      // The first parameter is skipped: with ZeRO all ranks receive its owner's values, including
      // the NaN.
      const auto after = train_step.model().parameters();
      for (std::size_t i = 1; i < after.size(); ++i)
        CHECK(test::different_bits(after[i].to(kCpu), before[i]) == "");
    });
  });
}

}  // namespace weft::examples::rank_steps_test
