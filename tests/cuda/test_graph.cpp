// What a graph can record, and what it owns.
#include <doctest/doctest.h>

#include <functional>
#include <vector>

#include "weft/autograd/dropout.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/tape.h"
#include "weft/core/allocator.h"
#include "weft/core/cuda_graph.h"
#include "weft/core/random.h"
#include "weft/nn/linear.h"
#include "weft/nn/moe.h"
#include "weft/nn/walk.h"
#include "weft/optim/sgd.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::graph_test {
namespace {

using cuda::Event;
using cuda::Graph;
using cuda::Readback;
using cuda::Stream;
using cuda::StreamScope;
using test::different_bits;
using test::error_of;
using test::kGpu;
using test::random;

Tensor on_gpu(std::uint64_t seed, const Shape& shape = {40}) {
  return random(shape, seed, DType::f32).to(kGpu);
}

}  // namespace

TEST_CASE("graph: a parameter must stay at its captured address") {
  nn::Linear layer(3, 2, {.bias = false}), other(3, 2, {.bias = false});
  layer.to(kGpu);
  other.to(kGpu);
  optim::Sgd sgd(layer.named_parameters(), {.lr = 1}), first(other.named_parameters(), {.lr = 1});
  const Tensor g = on_gpu(9, {2, 3});
  Graph graph;
  graph.capture([&] {
    layer.weight.set_grad(g);
    other.weight.set_grad(g);
    first.step();
    sgd.step();
  });
  graph.replay();
  nn::detail::replace_storage(layer.weight, layer.weight.clone());
  CHECK(error_of([&] { graph.replay(); }) ==
        "optimizer: weight has moved since the step was captured; capture it again");
  CHECK(sgd.steps() == 1);
  CHECK(first.steps() == 1);  // a refused replay changes nothing
}

TEST_CASE("graph: captured on its own stream and replayed on any") {
  for (const auto form : {optim::MasterWeights::f32, optim::MasterWeights::remainder}) {
    nn::Linear layer(3, 2, {.bias = false});
    layer.to(DType::bf16);
    layer.to(kGpu);
    layer.weight.fill_(1);
    optim::Sgd sgd(layer.named_parameters(), {.lr = 1, .master_weights = form});
    const Tensor g = on_gpu(9, {2, 3}).to(DType::bf16);
    Stream side = Stream::take();
    Graph graph;
    const auto step = [&] {
      layer.weight.set_grad(g);
      sgd.step();
    };
    {
      const StreamScope scope(side);
      CHECK(error_of([&] { graph.capture(step); }) ==
            "graph: capture() must run on the stream on which the graph was created, got another "
            "current stream of cuda:0");
    }
    CHECK(!graph.captured());
    graph.capture(step);
    graph.replay();
    layer.weight.fill_(0.25);  // the master weight is updated before the replay reads it
    {
      const StreamScope scope(side);
      graph.replay();
    }
    const Tensor want = sub(Tensor::full({2, 3}, 0.25, DType::f32), g.to(kCpu).to(DType::f32));
    CHECK(different_bits(layer.weight.to(kCpu), want.to(DType::bf16)) == "");
    side.synchronize();
    side.give_back();
  }
}

TEST_CASE("graph: keeps its memory until it is destroyed") {
  const Tensor x = on_gpu(1);
  Tensor result;
  const std::int64_t live = memory_stats(kGpu).live_bytes;
  {
    Graph graph;
    graph.capture([&] {
      const void* where = (x * x).raw();
      Tensor y = x + x;
      CHECK(y.raw() == where);  // freed and reused inside the capture
      y = y * y;
      result = y + x;
    });
    std::vector<Tensor> others;  // would take the blocks freed by the graph if they could
    for (int i = 0; i < 40; ++i) others.push_back(Tensor::full({40}, 7, DType::f32, kGpu));
    release_cached_memory(kGpu);
    graph.replay();
    for (const Tensor& t : others)
      CHECK(different_bits(t.to(kCpu), Tensor::full({40}, 7, DType::f32)) == "");
    const Tensor host = x.to(kCpu), twice = host + host;
    CHECK(different_bits(result.to(kCpu), twice * twice + host) == "");
  }
  // A result outlives the graph; dropping it returns the block to the device.
  const Tensor host = x.to(kCpu), twice = host + host;
  CHECK(different_bits(result.to(kCpu), twice * twice + host) == "");
  result = Tensor();
  CHECK(memory_stats(kGpu).live_bytes == live);
  release_cached_memory(kGpu);
  CHECK(memory_stats(kGpu).cached_bytes == 0);
}

TEST_CASE("graph: blocks freed inside are not reused while the graph can be replayed") {
  Tensor x = on_gpu(2), result;
  const Tensor host = x.to(kCpu);
  const void* const where = x.raw();
  {
    Graph graph;
    graph.capture([&] {
      result = x + x;
      x = Tensor();
    });
    const Tensor other = Tensor::full({40}, 7, DType::f32, kGpu);
    CHECK(other.raw() != where);
    graph.replay();
    CHECK(different_bits(result.to(kCpu), host + host) == "");
  }
  std::vector<Tensor> others;
  bool again = false;
  for (int i = 0; i < 40; ++i) {
    others.push_back(Tensor::empty({40}, DType::f32, kGpu));
    again = again || others.back().raw() == where;
  }
  CHECK(again);
}

TEST_CASE("graph: ops that need the host are refused inside") {
  const Tensor x = on_gpu(3), host = random({40}, 3, DType::f32);
  Stream side = Stream::take();
  const auto inside = [&](const std::function<void()>& work) {
    Graph graph;
    const std::string text = error_of([&] { graph.capture(work); });
    CHECK(!graph.captured());
    CHECK(Graph::capturing() == nullptr);
    CHECK(different_bits((x + x).to(kCpu), host + host) == "");  // the stream works again
    return text;
  };
  const std::string waits =
      "graph: the host cannot wait inside a capture, since nothing runs before replay(); wait "
      "after it";
  CHECK(inside([] { cuda::synchronize(); }) == waits);
  CHECK(inside([] { Stream::current().synchronize(); }) == waits);
  Event mark;
  mark.record();
  CHECK(inside([&] { mark.synchronize_unchecked(); }) == waits);
  CHECK(inside([&] { mark.record(); }) ==
        "graph: an event cannot be recorded inside a capture; record it after replay()");
  const std::string reads =
      "graph: no value can be read inside a capture, since nothing runs before replay(); read it "
      "after that";
  CHECK(inside([&] { (void)x.to(kCpu); }) == reads);
  CHECK(inside([&] { (void)x.narrow(0, 0, 1).item(); }) == reads);
  CHECK(inside([&] { const Readback r(x.narrow(0, 0, 1)); }) == reads);
  CHECK(inside([&] { (void)host.to(kGpu); }) ==
        "graph: host memory cannot be copied to a GPU inside a capture, since every replay would "
        "read it again; copy it into a tensor before replay()");
  const std::string leaves =
      "graph: a capture must stay on its first stream; change streams before or after it";
  CHECK(inside([&] { const StreamScope scope(side); }) == leaves);
  CHECK(inside([&] { mark.wait(Stream()); }) == leaves);
  CHECK(inside([&] { record_stream(x, side); }) == leaves);
  if (cuda::device_count() > 1) {
    const Tensor elsewhere = host.to({Device::Kind::cuda, 1});
    CHECK(inside([&] { x.copy_(elsewhere); }) == leaves);
  }
  CHECK(inside([&] { (void)dropout(x, 0.5, next_random_key()); }) ==
        "graph: random numbers inside a capture need a RandomScope, or every replay would draw the "
        "same");
  CHECK(inside([&] { Graph().capture([] {}); }) == "graph: a capture cannot begin inside another");
  Graph done;
  done.capture([&] { (void)(x + x); });
  CHECK(inside([&] { done.replay(); }) == "graph: replay() cannot be called inside a capture");
  side.give_back();
}

TEST_CASE("graph: replay() needs a capture, and a RandomScope if random layers were captured") {
  Graph graph;
  CHECK(error_of([&] { graph.replay(); }) == "graph: replay() needs a capture() before it");
  const Tensor x = Tensor::ones({64}, DType::f32, kGpu);
  Tensor y;
  graph.capture([&] {
    const RandomScope scope({.seed = 1, .step = 1});
    y = dropout(x, 0.5, RandomScope::key_for(7, 64, 1));
  });
  CHECK(error_of([&] { graph.replay(); }) ==
        "graph: replay() needs a RandomScope, since random layers were captured in one");
  {
    const RandomScope scope({.seed = 2, .step = 1});
    CHECK(error_of([&] { graph.replay(); }) ==
          "graph: replay() needs a RandomScope with the seed of the capture 1, got 2");
  }
  for (std::uint64_t step = 1; step <= 3; ++step) {
    const RandomScope scope({.seed = 1, .step = step});
    graph.replay();
    CHECK(different_bits(y.to(kCpu), dropout(x.to(kCpu), 0.5, RandomScope::key_for(7, 64, 1))) ==
          "");
  }
}

TEST_CASE("graph: experts can be captured only with a capacity") {
  const auto layer = [](double capacity) {
    nn::MoE moe(8, {.experts = 4, .router = {.capacity_factor = capacity}, .ffn = 6});
    nn::init(moe, 2);
    moe.to(kGpu);
    return moe;
  };
  const nn::MoE moe = layer(1);
  Tensor x = on_gpu(1, {10, 8}), y, dx;
  x.set_requires_grad();
  const Tensor dy = on_gpu(2, {10, 8});
  const auto work = [&] {
    Tape tape;
    y = moe(x).y;
    dx = tape.gradients(y, {x}, dy)[0];
  };
  work();
  const Tensor want = y.to(kCpu), dwant = dx.to(kCpu);
  Graph graph;
  graph.capture(work);
  for (int i = 0; i < 2; ++i) {
    graph.replay();
    CHECK(different_bits(y.to(kCpu), want) == "");
    CHECK(different_bits(dx.to(kCpu), dwant) == "");
  }
  const nn::MoE uneven = layer(0);
  Graph other;
  CHECK(error_of([&] { other.capture([&] { y = uneven(x).y; }); }).starts_with("graph: "));
}

TEST_CASE("graph: a replay leaves main_grad() set or null as the capture did") {
  const Tensor w = on_gpu(1).set_requires_grad();
  w.set_main_grad(Tensor::zeros(w.shape(), DType::f32, kGpu));
  const auto backward = [&] {
    Tape tape;
    sum(w * w).backward();
  };
  backward();
  for (const bool cleared : {false, true}) {
    Graph graph;
    graph.capture([&] {
      backward();
      if (cleared) w.zero_grad();
    });
    for (int i = 0; i < 2; ++i) {
      w.set_main_grad_filled(cleared);
      graph.replay();
      CHECK(w.main_grad_filled() == !cleared);
    }
  }
}

}  // namespace weft::graph_test
