// A rank that is lost in the gather of a unit of Fsdp, in forward and in backward.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "weft/distributed/fsdp.h"
#include "weft/distributed/parallel_optimizer.h"
#include "weft/nn/gpt.h"
#include "weft/nn/shard.h"
#include "weft/tests/expert_support.h"
#include "weft/tests/parallel_support.h"

namespace weft::distributed::fsdp_faults_test {
namespace {

constexpr int kRanks = 3;
std::atomic<int> given_up{0};

struct Outcome {
  std::string job;               ///< the error that ended it
  std::vector<std::string> own;  ///< by rank
};

// A step in which rank 1 calls `fault` in place of its gather number `gather`, from 0.
Outcome train(std::int64_t gather, const std::function<void()>& fault, double timeout_s) {
  const nn::GptConfig config{
      .arch = nn::Arch::llama, .layers = 2, .heads = 2, .dim = 8, .ffn = 12, .seq = 6, .vocab = 37};
  given_up = 0;
  Outcome out{.job = "", .own = std::vector<std::string>(kRanks)};
  WorldOptions options;
  options.timeout_s = timeout_s;
  const auto step = [&](World& w) {
    DeviceMesh mesh(w, {});
    nn::Gpt model = test::seeded(config, DType::f32);
    const Layout layout = test::cut(model, mesh, false);
    const auto adam = make_optimizer(model, mesh, layout, optim::AdamWOptions{.lr = 1e-2},
                                     {.bucket_size = 300, .shard = true, .fsdp = true});
    change_shard(model, [&](nn::Shard& s) {
      s.before_use = [&](const nn::Module& part) { adam->wait(part); };
    });
    const Tensor ids = test::random({2, 7}, 5, DType::i32);
    if (w.rank() == 1) testing::at_gather(gather, fault);
    adam->zero_grad();
    Tape tape;
    const Tensor loss =
        model.losses(ids.narrow(1, 0, 6).contiguous(), ids.narrow(1, 1, 6).contiguous()).total();
    adam->watch(tape);
    loss.backward(test::cotangent(loss, 12));
    adam->step(adam->finish(0.5));
  };
  out.job = test::error_of([&] {
    run_ranks(
        kRanks,
        [&](World& w) {
          std::string& own = out.own[static_cast<std::size_t>(w.rank())];
          try {
            step(w);
          } catch (const Error& e) {
            own = e.what();
            ++given_up;
            throw;
          }
        },
        options);
  });
  return out;
}

// The gathers of a first step: in forward each of the four units, in backward the two blocks again.
constexpr std::int64_t kGathers[] = {0, 2, 4, 5};

}  // namespace

TEST_CASE("fsdp faults: a rank that throws in a gather stops the others") {
  for (const std::int64_t gather : kGathers) {
    CAPTURE(gather);
    const Outcome got = train(
        gather, [] { throw Error("bad luck"); }, 600);
    CHECK(got.job == "rank 1: bad luck");
    for (const int r : {0, 2}) CHECK(got.own[static_cast<std::size_t>(r)] == "rank 1: bad luck");
  }
}

TEST_CASE("fsdp faults: a rank that does not come to a gather is named with it") {
  for (const std::int64_t gather : {1, 5}) {
    CAPTURE(gather);
    const Outcome got = train(
        gather,
        [] {
          while (given_up < kRanks - 1) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        },
        5);
    CHECK(got.job.find("all_gather ") == 0);
    CHECK(got.job.find(": rank 1 did not come within 5 s") != std::string::npos);
    for (const int r : {0, 2}) CHECK(got.own[static_cast<std::size_t>(r)] == got.job);
  }
}

}  // namespace weft::distributed::fsdp_faults_test
