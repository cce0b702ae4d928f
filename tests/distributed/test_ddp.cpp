#include <doctest/doctest.h>

#include <limits>
#include <mutex>

#include "weft/autograd/recompute.h"
#include "weft/distributed/ddp.h"
#include "weft/nn/gpt.h"
#include "weft/optim/adamw.h"
#include "weft/tests/parallel_support.h"
#include "weft/tests/ranks.h"

namespace weft::distributed::ddp_test {
namespace {

using test::cotangent;
using test::Stack;

constexpr std::int64_t kBatch = 48;
constexpr double kCount = kBatch * 6;

// Backward passes over this rank's rows, split into micro-batches.
void backward(const Stack& model, World& w, Ddp& ddp, DType dtype, int micros = 1) {
  for (int m = 0; m < micros; ++m) {
    Tape tape;
    const Tensor loss =
        test::loss_of(model, test::rows_of(kBatch, w.rank(), w.size(), dtype, m, micros));
    if (m + 1 == micros) ddp.watch(tape);
    loss.backward(cotangent(loss, kCount));
  }
}

std::vector<Tensor> one_rank_gradients(DType dtype) {
  const Stack model(3, dtype);
  Tape tape;
  const Tensor loss = test::loss_of(model, test::rows_of(kBatch, 0, 1, dtype));
  loss.backward(cotangent(loss, kCount));
  return test::gradients(model);
}

std::vector<Tensor> ddp_gradients(World& w, DType dtype, const DdpOptions& options,
                                  int micros = 1) {
  Stack model(3, dtype);
  const DeviceMesh mesh(w);
  Ddp ddp(model, mesh, {}, options);
  backward(model, w, ddp, dtype, micros);
  ddp.finish();
  return test::gradients(model);
}

}  // namespace

TEST_CASE("ddp: gradients equal those of one rank with the whole batch") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    const std::vector<Tensor> want = one_rank_gradients(dtype);
    const double limit = dtype == DType::f64 ? 1e-12 : 1e-6;
    test::distributed_test({1, 2, 4, 8}, [&](World& w) {
      for (const int micros : {1, 3}) {
        const std::vector<Tensor> got = ddp_gradients(w, dtype, {.bucket_size = 100}, micros);
        CHECK(got[0].dtype() == dtype);
        CHECK(test::distance(got, want) < limit);
      }
    });
  }
}

TEST_CASE("ddp: overlap and bucket size change no bit") {
  test::distributed_test({2, 4}, [](World& w) {
    const std::vector<Tensor> want = ddp_gradients(w, DType::f32, {.bucket_size = 200});
    CHECK(test::same_bits(ddp_gradients(w, DType::f32, {.bucket_size = 200}), want));
    CHECK(test::same_bits(ddp_gradients(w, DType::f32, {.bucket_size = 200, .overlap = false}),
                          want));
    CHECK(test::same_bits(ddp_gradients(w, DType::f32, {.bucket_size = 1}), want));
    CHECK(test::same_bits(ddp_gradients(w, DType::f32, {}), want));
    CHECK(test::same_bits(ddp_gradients(w, DType::f32, {.bucket_size = 200}, 2),
                          ddp_gradients(w, DType::f32, {.bucket_size = 1}, 2)));
  });
}

TEST_CASE("ddp: one collective per bucket overlaps the last micro-batch's backward") {
  test::distributed_test({2, 4}, [](World& w) {
    Stack model(3);
    const std::int64_t world_before = w.all().calls(), before = w.recorder().count();
    const DeviceMesh mesh(w);
    Ddp ddp(model, mesh, {}, {.bucket_size = 200});
    const auto buckets = static_cast<std::int64_t>(ddp.buckets().size());
    CHECK(buckets == 4);
    for (int m = 0; m < 4; ++m) {
      Tape tape;
      const Tensor loss =
          test::loss_of(model, test::rows_of(kBatch, w.rank(), w.size(), DType::f32, m, 4));
      if (m == 3) ddp.watch(tape);
      loss.backward(cotangent(loss, kCount));
      CHECK(mesh.dp_cp().calls() == (m == 3 ? buckets : 0));
    }
    ddp.finish();
    CHECK(mesh.dp_cp().calls() == buckets);
    CHECK(w.all().calls() - world_before == 1);
    CHECK(w.recorder().count() - before == buckets + 1);
  });
}

TEST_CASE("ddp: without watch() all buckets are reduced at the end") {
  const std::vector<Tensor> want = one_rank_gradients(DType::f32);
  run_ranks(2, [&](World& w) {
    Stack model(3);
    const DeviceMesh mesh(w);
    Ddp ddp(model, mesh, {}, {.bucket_size = 200});
    Tape tape;
    const Tensor loss = test::loss_of(model, test::rows_of(kBatch, w.rank(), 2));
    loss.backward(cotangent(loss, kCount));
    CHECK(w.recorder().count() == 0);
    ddp.finish();
    CHECK(test::distance(test::gradients(model), want) < 1e-6);
  });
}

namespace {

std::vector<std::string> lines;
std::mutex lines_mutex;

void keep_line(std::string_view line) {
  const std::lock_guard lock(lines_mutex);
  lines.emplace_back(line);
}

}  // namespace

TEST_CASE("ddp: parameters may lack a gradient on some or all ranks in any order") {
  lines.clear();
  set_log_handler(keep_line);
  run_ranks(2, [](World& w) {
    Stack model(4);
    const DeviceMesh mesh(w);
    Ddp ddp(model, mesh, {}, {.bucket_size = 100});
    for (int step = 0; step < 2; ++step) {
      for (const Ddp::Bucket& b : ddp.buckets())
        b.grad.fill_(std::numeric_limits<double>::quiet_NaN());
      ddp.zero_grad();
      Tape tape;
      const Tensor x = test::rows_of(kBatch, w.rank(), 2);
      // Layer 2 is unused, only rank 0 uses layer 1, and the ranks use the layers in different
      // orders.
      Tensor y = w.rank() == 0 ? model.layers[0](model.layers[1](model.layers[3](x)))
                               : model.layers[3](model.layers[0](x));
      const Tensor loss = sum(square(y));
      ddp.watch(tape);
      loss.backward();
      ddp.finish();
      const Tensor unused = model.layers[2].up.weight.main_grad();
      CHECK(test::mismatch(unused, Tensor::zeros(unused.shape()), 0) == "");
      // Both ranks have rank 0's contribution.
      const Tensor theirs = model.layers[1].up.weight.main_grad().clone();
      w.all().broadcast(theirs, 0).wait();
      CHECK(test::different_bits(model.layers[1].up.weight.main_grad(), theirs) == "");
      CHECK(theirs.abs().max().item() > 0);
    }
  });
  set_log_handler(nullptr);
  // One line per rank, not per step.
  CHECK(lines.size() == 2);
  std::sort(lines.begin(), lines.end());
  CHECK(lines[0] ==
        "ddp: no gradient reached 4 of 16 parameters, the first is layers.2.up.weight; their "
        "buckets are sent after backward");
  CHECK(lines[1] ==
        "ddp: no gradient reached 8 of 16 parameters, the first is layers.1.up.weight; their "
        "buckets are sent after backward");
}

TEST_CASE("ddp: tied parameters and recomputed regions are reduced after their last use") {
  const auto run = [](World& w, bool again, DType dtype) {
    const nn::DeviceScope scope(kCpu, dtype);
    nn::GptConfig config;
    config.layers = 2;
    config.heads = 2;
    config.dim = 16;
    config.seq = 8;
    config.vocab = 20;
    config.recompute = again ? nn::Recompute::full : nn::Recompute::none;
    nn::Gpt model(config);
    nn::init(model, 3);
    const DeviceMesh mesh(w);
    Ddp ddp(model, mesh, {}, {.bucket_size = 1000});
    const Tensor ids = test::random({4, 8}, 5, DType::i64);
    const Tensor mine = ids.narrow(0, w.rank() * 4 / w.size(), 4 / w.size()).clone();
    Tape tape;
    const auto loss = model.loss.sum(model.hidden(mine), model.head, mine);
    ddp.watch(tape);
    const std::int64_t before = w.recorder().count();
    loss.loss.backward(cotangent(loss.loss, 32));
    CHECK(w.recorder().count() - before == static_cast<std::int64_t>(ddp.buckets().size()));
    ddp.finish();
    return test::gradients(model);
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    std::vector<Tensor> want;
    run_ranks(1, [&](World& w) { want = run(w, false, dtype); });
    const double limit = dtype == DType::f64 ? 1e-12 : 1e-5;
    test::distributed_test({2, 4}, [&](World& w) {
      for (const bool again : {false, true})
        CHECK(test::distance(run(w, again, dtype), want) < limit);
    });
  }
}

TEST_CASE("ddp: losses of 20 AdamW steps equal those of one rank") {
  const auto run = [](World& w, int micros) {
    Stack model(3);
    const DeviceMesh mesh(w);
    Ddp ddp(model, mesh, {}, {.bucket_size = 200});
    optim::AdamW adam(model.named_parameters(), {.lr = 3e-2});
    std::vector<double> losses;
    for (int step = 0; step < 20; ++step) {
      ddp.zero_grad();
      const Tensor total = Tensor::zeros({});
      for (int m = 0; m < micros; ++m) {
        Tape tape;
        const Tensor x = test::rows_of(kBatch, w.rank(), w.size(), DType::f32, m, micros);
        const Tensor loss = test::loss_of(model, x);
        if (m + 1 == micros) ddp.watch(tape);
        loss.backward(cotangent(loss, kCount));
        total.add_(loss.detach());
      }
      adam.step(ddp.finish(1));
      w.all().all_reduce(total).wait();
      losses.push_back(total.item() / kCount);
    }
    return losses;
  };
  std::vector<double> want;
  run_ranks(1, [&](World& w) { want = run(w, 1); });
  CHECK(want[19] < 0.5 * want[0]);
  test::distributed_test({2, 4}, [&](World& w) {
    for (const int micros : {1, 3}) {
      const std::vector<double> got = run(w, micros);
      for (std::size_t i = 0; i < got.size(); ++i)
        CHECK(std::abs(got[i] - want[i]) <= 1e-4 * want[i]);
    }
  });
}

TEST_CASE("ddp: bf16 models reduce in f32 or on request in bf16") {
  const std::vector<Tensor> want = one_rank_gradients(DType::f32);
  test::distributed_test({2, 4}, [&](World& w) {
    for (const DType kept : {DType::f32, DType::bf16}) {
      const std::vector<Tensor> got =
          ddp_gradients(w, DType::bf16, {.bucket_size = 200, .grad_dtype = kept});
      CHECK(got[0].dtype() == kept);
      CHECK(test::distance(got, want) < 2e-2);
    }
  });
}

TEST_CASE("ddp: check_finite names a gradient that is not finite") {
  const auto run = [](const DdpOptions& options) {
    return test::error_of([&] {
      run_ranks(2, [&](World& w) {
        Stack model(2);
        const DeviceMesh mesh(w);
        Ddp ddp(model, mesh, {}, options);
        Tape tape;
        const Tensor loss = test::loss_of(model, test::rows_of(kBatch, w.rank(), 2));
        ddp.watch(tape);
        loss.backward(Tensor::full({}, w.rank() == 1 ? NAN : 1));
        const optim::GradClip clip = ddp.finish(1);
        CHECK(std::isnan(clip.scale.item()));
        // No rank updates its parameters.
        const std::vector<Tensor> before = test::copies(model.parameters());
        optim::AdamW adam(model.named_parameters());
        CHECK(adam.step(clip).skipped);
        CHECK(test::same_bits(model.parameters(), before));
      });
    });
  };
  CHECK(run({}) == "no error");
  CHECK(run({.bucket_size = 1, .check_finite = true}) ==
        "rank 1: ddp: the gradient of layers.1.down.bias is not finite on rank 1");
}

TEST_CASE("ddp: pipeline stages are refused") {
  run_ranks(2, [](World& w) {
    const DeviceMesh mesh(w, {.pp = 2});
    Stack model(1);
    CHECK(test::error_of([&] { Ddp(model, mesh); }) == "ddp: pp must be 1, got 2");
  });
}

TEST_CASE("ddp: errors name the rule") {
  run_ranks(1, [](World& w) {
    const DeviceMesh mesh(w);
    Stack model(1);
    CHECK(test::error_of([&] { Ddp(model, mesh, {}, {.grad_dtype = DType::f16}); }) ==
          "ddp: grad_dtype must be f32 or bf16, got f16");
    CHECK(test::error_of([&] { Ddp(model, mesh, {}, {.bucket_size = -1}); }) ==
          "ddp: bucket_size must be at least 0, got -1");
    for (const std::int64_t multiple : {-1, 0, 3, 128})
      CHECK(test::error_of([&] { Ddp(model, mesh, {}, {.slice_multiple = multiple}); }) ==
            message("ddp: slice_multiple must be a power of two up to 64, got {}", multiple));
    Stack empty(0);
    CHECK(test::error_of([&] { Ddp(empty, mesh); }) ==
          "ddp: the model must have parameters, got none");
    Stack strided(1), apart(1);
    strided.layers[0].up.weight = Tensor::ones({6, 13}).t().detach();
    CHECK(test::error_of([&] { Ddp(strided, mesh); }) ==
          "ddp: layers.0.up.weight must be contiguous, got strides [1, 13]");
    apart.layers[0].down.bias = Tensor::ones({6}, DType::f32, kMeta);
    CHECK(test::error_of([&] { Ddp(apart, mesh); }) ==
          "ddp: all parameters must be on device cpu, but layers.0.down.bias is on meta");
    {
      Ddp ddp(model, mesh);
      Tape tape;
      ddp.watch(tape);
      CHECK(test::error_of([&] { ddp.watch(tape); }) ==
            "ddp: finish() must be called before the next watch()");
      const Tensor loss = test::loss_of(model, test::rows_of(4, 0, 1));
      loss.backward();
      CHECK(test::error_of([&] { ddp.zero_grad(); }) ==
            "ddp: finish() must be called before zero_grad()");
      CHECK(test::error_of([&] { ddp.zeros(); }) == "ddp: zeros() needs count_zeros");
      ddp.finish();
    }
    CHECK_FALSE(model.layers[0].up.weight.main_grad().defined());
  });
}

}  // namespace weft::distributed::ddp_test
