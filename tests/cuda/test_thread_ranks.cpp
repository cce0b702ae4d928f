// Several ranks, as threads of one process, on one GPU.
#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/core/cuda_graph.h"
#include "weft/distributed/parallel_optimizer.h"
#include "weft/distributed/shard_experts.h"
#include "weft/nn/moe.h"
#include "weft/tests/cuda/gpu.h"
#include "weft/tests/group_conformance.h"
#include "weft/tests/parallel_support.h"

namespace weft::distributed::thread_ranks_test {
namespace {

using cuda::Stream;
using cuda::StreamScope;
using test::kGpu;

/// Ranks whose kernels run on separate streams.
void run_streams(int ranks, const std::function<void(World&)>& f) {
  run_ranks(ranks, [&](World& w) {
    Stream stream = Stream::take(kGpu);
    {
      const StreamScope scope(stream);
      f(w);
    }
    stream.synchronize();
    stream.give_back();
  });
}

}  // namespace

TEST_CASE("thread ranks: conformance on one GPU") {
  run_ranks(2, [](World& w) { test::check_groups(w, kGpu); });
  run_streams(3, [](World& w) { test::check_groups(w, kGpu); });
}

TEST_CASE("thread ranks: sums in every order of threads by single elements and 16-byte packs") {
  test::for_each_order([] {
    run_streams(3, [](World& w) {
      for (const std::int64_t n : {1, 7, 192, 3 * 64 * 37, 5003}) {
        const Tensor x = test::random({n}, 1 + static_cast<std::uint64_t>(w.rank()), DType::f32);
        const Tensor here = x.to(kGpu);
        w.all().all_reduce(here).wait();
        w.all().all_reduce(x).wait();
        CHECK(test::different_bits(here.to(kCpu), x) == "");
      }
    });
  });
}

TEST_CASE("thread ranks: no host waits and memory is reused only after its readers") {
  run_streams(3, [](World& w) {
    const auto value = [&](int rank, int step) { return 10.0 * rank + step; };
    Tensor out = Tensor::zeros({3, 100}, DType::f32, kGpu),
           sums = Tensor::zeros({}, DType::f32, kGpu);
    w.all().all_gather(out, out.narrow(0, w.rank(), 1)).wait();
    w.all().barrier().wait();
    const std::int64_t syncs = cuda::host_syncs();
    w.all().barrier().wait();
    for (int step = 0; step < 20; ++step) {
      {
        const Tensor x = Tensor::full({1, 100}, value(w.rank(), step), DType::f32, kGpu);
        w.all().all_gather(out, x).wait();
      }
      // In the memory of x, which other ranks may still read.
      const Tensor other = Tensor::full({1, 100}, -1e6, DType::f32, kGpu);
      sums = sums + out.sum();
      const Tensor y = Tensor::full({64}, value(w.rank(), step), DType::f32, kGpu);
      w.all()
          .exchange(other.narrow(1, 0, 64).view({64}), (w.rank() + 1) % 3, y, (w.rank() + 2) % 3)
          .wait();
      sums = sums + other.sum();
    }
    w.all().barrier().wait();
    CHECK(cuda::host_syncs() == syncs);
    w.all().barrier().wait();
    double want = 0;
    for (int step = 0; step < 20; ++step) {
      for (int r = 0; r < 3; ++r) want += 100 * value(r, step);
      want += 64 * value((w.rank() + 1) % 3, step) - 36e6;
    }
    CHECK(sums.item() == doctest::Approx(want));
  });
}

TEST_CASE("thread ranks: experts with a capacity keep the CPU's slots and no host waits") {
  for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather})
    run_streams(2, [&](World& w) {
      const DeviceMesh mesh(w, {.tp = 2, .ep = 2, .etp = 1});
      const auto rank = static_cast<std::uint64_t>(w.rank());
      const auto run = [&](Device device) {
        nn::MoE m(8, {.experts = 4,
                      .router = {.capacity_factor = 0.5, .init = nn::Init::normal(1)},
                      .ffn = 6});
        nn::init(m, 3);
        m.to(DType::f64);
        shard_experts(m, mesh, {.dispatcher = kind, .sequence_parallel = true});
        m.to(device);
        Tensor x = test::random({9, 8}, 1 + rank).to(device);
        x.set_requires_grad();
        const Tensor dy = test::random({9, 8}, 5 + rank).to(device);
        w.all().barrier().wait();
        const std::int64_t syncs = cuda::host_syncs();
        w.all().barrier().wait();
        Tape tape;
        const Tensor y = m(x).y;
        const Tensor dx = tape.gradients(y, {x}, dy)[0];
        w.all().barrier().wait();
        CHECK(cuda::host_syncs() == syncs);
        w.all().barrier().wait();
        return TensorList{m.router(x).routing.experts.to(kCpu), y.detach().to(kCpu), dx.to(kCpu)};
      };
      const TensorList want = run(kCpu), got = run(kGpu);
      CHECK(test::different_bits(got[0], want[0]) == "");
      CHECK(min(want[0]).item_int() == -1);
      for (const int i : {1, 2}) CHECK(test::mismatch(got[i], want[i], 1e-12) == "");
    });
}

TEST_CASE("thread ranks: the optimizer skips parameters without a gradient on every rank") {
  for (const DType states : {DType::f32, DType::f16})
    for (const bool shard : {false, true})
      run_streams(2, [&](World& w) {
        test::Stack model(3);
        model.to(kGpu);
        const DeviceMesh mesh(w);
        Ddp ddp(model, mesh, {}, {.bucket_size = 100, .shard = shard});
        std::vector<std::unique_ptr<ParallelOptimizer>> both;
        both.push_back(make_optimizer(
            ddp, optim::AdamWOptions{.weight_decay = 0.1, .m_dtype = states, .v_dtype = states}));
        both.push_back(
            make_optimizer(ddp, optim::SgdOptions{.momentum = 0.9, .weight_decay = 0.1}));
        for (const auto& optimizer : both)
          for (const int step : {0, 1, 2}) {
            // Both ranks use layer 0, only rank 0 uses layer 1, and layer 2 is used in the first
            // step only.
            const std::vector<Tensor> before = test::copies(model.parameters());
            {
              Tape tape;
              Tensor x = model.layers[0](test::random({4, 6}, 1, DType::f32).to(kGpu));
              if (w.rank() == 0) x = model.layers[1](x);
              if (step == 0) x = model.layers[2](x);
              ddp.watch(tape);
              sum(square(x)).backward();
            }
            optimizer->step(ddp.finish(1));
            optimizer->wait();
            ddp.zero_grad();
            const std::vector<Tensor> now = model.parameters();
            for (std::size_t i = 0; i < now.size(); ++i) {
              CAPTURE(step);
              CAPTURE(i);
              const bool moved = test::different_bits(now[i].to(kCpu), before[i].to(kCpu)) != "";
              CHECK(moved == (i < 8 || step == 0));
              const Tensor theirs = now[i].detach().clone();
              w.all().broadcast(theirs, 0).wait();
              CHECK(test::different_bits(now[i].to(kCpu), theirs.to(kCpu)) == "");
            }
          }
      });
}

TEST_CASE("thread ranks: a replayed backward gives its parameters gradients") {
  run_streams(2, [](World& w) {
    test::Stack model(2);
    model.to(kGpu);
    const DeviceMesh mesh(w);
    Ddp ddp(model, mesh, {}, {.bucket_size = 100});
    optim::AdamW adam(model.named_parameters(), {.weight_decay = 0.1});
    const Tensor x = test::random({4, 6}, 1, DType::f32).to(kGpu);
    const auto backward = [&] {
      Tape tape;
      sum(square(model.layers[0](x))).backward();
    };
    backward();
    cuda::Graph graph(kGpu);
    graph.capture(backward);
    for (int step = 0; step < 2; ++step) {
      ddp.zero_grad();
      const std::vector<Tensor> before = test::copies(model.parameters());
      graph.replay();
      adam.step(ddp.finish(1));
      const std::vector<Tensor> now = model.parameters();
      for (std::size_t i = 0; i < now.size(); ++i)
        CHECK((test::different_bits(now[i].to(kCpu), before[i].to(kCpu)) != "") == (i < 4));
    }
  });
}

TEST_CASE("thread ranks: a collective inside a capture is refused") {
  run_streams(2, [](World& w) {
    const Tensor x = Tensor::ones({4}, DType::f32, kGpu);
    cuda::Graph graph(kGpu);
    const std::string why =
        test::error_of([&] { graph.capture([&] { w.all().all_reduce(x).wait(); }); });
    CHECK(why ==
          "graph: a collective cannot be inside a capture, since other ranks would wait for it; "
          "call it before or after replay()");
    w.all().all_reduce(x).wait();
    CHECK(x.to(kCpu).select(0, 0).item() == 2);
  });
}

TEST_CASE("thread ranks: tensors must be on one device") {
  const auto failure = [](const auto& f) { return test::error_of([&] { run_ranks(2, f); }); };
  CHECK(failure([](World& w) {
          w.all().all_reduce(Tensor::zeros({4}, DType::f32, w.rank() ? kGpu : kCpu)).wait();
        }) ==
        "all_reduce 0 of group world, f32 [4]: all ranks of a group must use the same device, "
        "rank 0 uses cpu, rank 1 cuda:0");
  CHECK(failure([](World& w) {
          if (w.rank() == 0)
            w.all().send(Tensor::zeros({4}, DType::f32, kGpu), 1).wait();
          else
            w.all().receive(Tensor::zeros({4}), 0).wait();
        }) ==
        "send 0 of group world, f32 [4]: all ranks of a group must use the same device, rank "
        "0 uses cuda:0, rank 1 cpu");
}

}  // namespace weft::distributed::thread_ranks_test
