// Lines of docs/from_pytorch.md, as in test_from_pytorch.cpp: devices, autograd, modules, training,
// files, ranks.
#include <doctest/doctest.h>

#include <cmath>
#include <sstream>

#include "weft/core/cuda.h"
#include "weft/distributed/sharded_optimizer.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"
#include "weft/weft.h"

namespace weft::from_pytorch_training_test {
namespace {

using Values = std::vector<double>;
Values values(const Tensor& t) { return test::values(t); }

struct Net : nn::Module {
  nn::Linear up{8, 32}, down{32, 4};
  nn::Dropout drop{0.1};
  Tensor scale = nn::make_parameter({4}, nn::Init::constant(1));
  Tensor count = Tensor::zeros({1});

  Tensor operator()(const Tensor& x) const { return scale * down(drop(gelu(up(x)))); }
  void visit(nn::Visitor& v) override {
    v("up", up);
    v("down", down);
    v("drop", drop);
    v("scale", scale, nn::Init::constant(1));
    v("count", nn::buffer(count));
  }
};

struct Stack : nn::Module {
  std::vector<nn::Linear> layers;
  explicit Stack(int n) {
    for (int i = 0; i < n; ++i) layers.emplace_back(8, 8);
  }
  Tensor operator()(Tensor x) const {
    for (const nn::Linear& layer : layers) x = relu(layer(x));
    return x;
  }
  void visit(nn::Visitor& v) override { v("layers", layers); }
};

}  // namespace

TEST_CASE("from PyTorch: dtype, device, threads") {
  const Tensor x = Tensor::ones({2});
  CHECK(x.to(DType::bf16).dtype() == DType::bf16);
  const std::string name = cuda::device_count() > 0 ? "cuda:0" : "cpu";
  const Tensor y = x.to(Device::parse(name));
  CHECK(to_string(y.device()) == name);
  CHECK(Tensor::zeros({2}, DType::f32, Device::parse(name)).device() == y.device());

  Net model;
  model.to(DType::bf16);
  CHECK(model.up.weight.dtype() == DType::bf16);
  model.to(kCpu);
  {
    const nn::DeviceScope on_meta(kMeta);
    Net planned;
    CHECK(planned.up.weight.is_meta());
    nn::materialise(planned, kCpu, 1);
    CHECK(!planned.up.weight.is_meta());
  }
  {
    const nn::DeviceScope on_meta(kMeta);
    Net planned;
    nn::to_empty(planned, kCpu);
    planned.load_state_dict(model.state_dict());
    CHECK(test::different_bits(planned.up.weight, model.up.weight.to(DType::f32)) == "");
  }
  const test::RestoreThreads restore;
  set_num_threads(2);
  CHECK(num_threads() == 2);
  set_deterministic(true);
  CHECK(deterministic());
}

TEST_CASE("from PyTorch: autograd") {
  Tensor w = Tensor::of({3}, {1});
  w.set_requires_grad();
  {
    Tape tape;
    const Tensor loss = (w * w).sum();
    loss.backward();
  }
  CHECK(w.grad().item() == 6);
  w.zero_grad();
  CHECK(!w.grad().defined());
  {
    Tape tape;
    const Tensor y = w * w, dy = Tensor::full({1}, 10);
    y.backward(dy);
    CHECK(w.grad().item() == 60);
  }
  {
    Tape tape;
    const Tensor loss = (w * w).sum();
    CHECK(grad(loss, {w})[0].item() == 6);
  }
  {
    Tape outer;
    Tensor slope;
    {
      Tape inner;
      slope = grad(w * w * w, {w})[0];
    }
    CHECK(grad(slope, {w})[0].item() == 18);
  }
  {
    Tape tape;
    const Tensor y = w * 2;
    {
      NoGradGuard no_grad;
      CHECK(!(w * 2).requires_grad());
    }
    CHECK(!y.detach().requires_grad());
    int ready = 0;
    tape.on_grad_ready([&](const Tensor& leaf) { ready += leaf.same(w); });
    y.backward();
    CHECK(ready == 1);
  }
  const auto f = [](const TensorList& in) { return in[0].exp(); };
  const Tensor x = Tensor::of({1, 2}, {2}, DType::f64).set_requires_grad();
  CHECK(gradcheck(f, {x}) == "");
}

TEST_CASE("from PyTorch: custom functions and recompute") {
  const auto cube = [](const Tensor& x) {
    return custom_function(
        "cube", {x}, [](const TensorList& in) { return in[0] * in[0] * in[0]; },
        [](const TensorList& in, const Tensor&, const Tensor& dy) {
          return TensorList{dy * in[0] * in[0] * 3};
        });
  };
  const Tensor x = Tensor::of({2}, {1}).set_requires_grad();
  Tape tape;
  const Tensor y = recompute(cube, x);
  y.backward();
  CHECK(x.grad().item() == 12);
}

TEST_CASE("from PyTorch: modules") {
  CHECK(!nn::Linear(8, 4, {.bias = false}).bias.defined());
  // clang-format off
  nn::Block layer(nn::LayerNorm(8), nn::Attention(8, 2, {.causal = false}), nn::Mlp(8, 32, {.activation = Activation::relu}));
  // clang-format on
  CHECK(layer(randn({2, 3, 8})).shape() == Shape{2, 3, 8});
  CHECK(nn::Embedding(100, 8).weight.shape() == Shape{100, 8});
  CHECK(nn::LayerNorm(8).parameter_count() == 16);
  CHECK(nn::RMSNorm(8).parameter_count() == 8);
  CHECK(Stack(3).named_parameters()[2].name == "layers.1.weight");
  const auto net = nn::Sequential(
      nn::Linear(8, 4), [](const Tensor& x) { return relu(x); }, nn::Dropout(0.1));
  CHECK(net.named_parameters()[0].name == "0.weight");
  Net model;
  nn::init(model, 1);
  CHECK(model.parameters().size() == 5);
  CHECK(model.named_parameters()[0].name == "up.weight");
  CHECK(model.parameter_count() == 8 * 32 + 32 + 32 * 4 + 4 + 4);
  CHECK(model.buffers().size() == 1);

  StateDict state = model.state_dict();
  CHECK(state.count("count") == 1);
  Net other;
  other.load_state_dict(state);
  CHECK(values(other.up.weight) == values(model.up.weight));
  state.erase("count");
  CHECK(other.load_state_dict(state, false).missing.size() == 1);

  model.eval();
  CHECK(!model.drop.is_training());
  model.train();
  CHECK(model.drop.is_training());
  model.up.weight.set_requires_grad(false);
  CHECK(!model.up.weight.requires_grad());
  model.up.set_requires_grad();
  CHECK(model.up.weight.requires_grad());
  nn::Init::normal(0.02).fill(model.up.weight, next_random_key());
  nn::Embedding embed(100, 8);
  nn::Linear head;
  head.weight = embed.weight;
  CHECK(head.weight.same(embed.weight));
  Net copy = nn::clone(model);
  CHECK(copy.up.weight.raw() != model.up.weight.raw());
  std::ostringstream cout;
  cout << model;
  CHECK(cout.str().find("Linear(8 -> 32") != std::string::npos);
}

TEST_CASE("from PyTorch: losses") {
  const Tensor logits = rand_normal({3, 10}), targets = Tensor::of({1, 2, -100}, {3}, DType::i64);
  const double mean = cross_entropy(logits, targets).item();
  CHECK(cross_entropy(logits, targets, {.reduction = Reduction::sum}).item() ==
        doctest::Approx(2 * mean));
  CHECK(cross_entropy(logits, targets, {.label_smoothing = 0.1}).item() > 0);
  const Tensor y = Tensor::of({1, 2}, {2}), t = Tensor::of({1, 4}, {2});
  CHECK(mse_loss(y, t).item() == 2);
  CHECK(l1_loss(y, t).item() > 0);
  CHECK(huber_loss(y, t).item() > 0);
  const Tensor p = Tensor::full(y.shape(), 0.5), q = Tensor::full({2, 3}, 1.0 / 3);
  CHECK(binary_cross_entropy_with_logits(y, p).item() > 0);
  const Tensor log_probs = log_softmax(Tensor::zeros({2, 3}));
  const Tensor classes = Tensor::of({2, 0}, DType::i64);
  CHECK(nll_loss(log_probs, classes).item() == doctest::Approx(std::log(3)));
  CHECK(kl_div(log_probs, q, Reduction::sum).item() == doctest::Approx(0).epsilon(1e-6));
}

TEST_CASE("from PyTorch: optimizers and a training loop") {
  Net model;
  nn::init(model, 1);
  optim::AdamW optimizer(model, {.lr = 1e-2, .beta2 = 0.95});
  const optim::Sgd sgd(model, {.lr = 0.1, .momentum = 0.9});
  const int steps = 20;
  const optim::Schedule schedule{
      .kind = optim::Schedule::Kind::cosine, .lr = 1e-2, .warmup = 2, .steps = steps};
  const Tensor inputs = rand_normal({16, 8});
  const Tensor targets = gt(inputs.select(1, 0), 0).to(DType::i64);
  Values losses;

  for (int step = 1; step <= steps; ++step) {
    optimizer.set_lr(schedule.at(step));
    Tape tape;
    const Tensor loss = cross_entropy(model(inputs), targets);
    loss.backward();
    optim::clip_grad_norm(model.named_parameters(), 1.0);
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(loss.item());
  }
  CHECK(losses.back() < losses.front() / 2);

  optim::AdamW grouped(model.named_parameters(),
                       {.groups = {{.pattern = "bias$", .weight_decay = 0.0}}});
  grouped.load_state_dict(optimizer.state_dict());
  CHECK(grouped.steps() == 20);
  {
    Tape tape;
    mse_loss(model(inputs), Tensor::zeros({16, 4})).backward();
  }
  optimizer.step(optim::measure_clip(model.named_parameters(), 1.0));
  CHECK(optimizer.steps() == 21);
}

TEST_CASE("from PyTorch: data in memory") {
  const Tensor images = rand({70, 8}), labels = Tensor::arange(0, 70, 1, DType::i64);
  data::TensorDataset examples(images, labels);
  data::Loader loader(examples, {.batch = 32, .last = data::LastBatch::dropped});
  int steps = 0;

  while (loader.epoch() < 2) {
    const data::Batch b = loader.next();
    CHECK(b.inputs.shape() == Shape{32, 8});
    ++steps;
  }
  CHECK(steps == 4);

  const std::string position = loader.position();
  const Values next = values(loader.next().targets);
  loader.set_position(position);
  CHECK(values(loader.next().targets) == next);
  data::Loader small_last(examples, {.batch = 32, .last = data::LastBatch::kept});
  (void)small_last.next(), (void)small_last.next();
  CHECK(small_last.next().rows() == 6);
  const data::EvalLoader test(examples, 32);
  CHECK(test.batch(2).rows() == 6);
}

TEST_CASE("from PyTorch: files") {
  const test::TempFolder folder;
  const std::string path = folder / "model.safetensors", out = folder / "run";
  Net model, other;
  nn::init(model, 1);
  io::save_safetensors(path, model.state_dict());
  other.load_state_dict(io::load_safetensors(path));
  CHECK(values(other.up.weight) == values(model.up.weight));

  const StateDict state = renamed(model.state_dict(), {{"up.", "fc1."}});
  const StateDict file = with_prefix(state, "module.");
  other.load_state_dict(renamed(without_prefix(file, "module."), {{"fc1.", "up."}}));

  const optim::AdamW optimizer(model);
  io::save_checkpoint(out, 100, {model.state_dict(), optimizer.state_dict()});
  CHECK(io::find_checkpoint(out)->step == 100);
  model.load_state_dict(io::load_checkpoint(out).model);
  const Tensor x = Tensor::of({1, 2}, {2});
  io::save_npy(folder / "x.npy", x);
  CHECK(values(io::load_npy(folder / "x.npy")) == Values{1, 2});
}

TEST_CASE("from PyTorch: several ranks") {
  distributed::run_ranks(2, [](distributed::World& world) {
    CHECK(world.rank() < world.size());
    const Tensor x = Tensor::ones({3});
    world.all().all_reduce(x).wait();
    CHECK(values(x) == Values{2, 2, 2});

    Net model;
    nn::init(model, 1);
    model.eval();
    const distributed::DeviceMesh mesh(world, {.dp = 2});
    {
      distributed::Ddp ddp(model, mesh);
      ddp.zero_grad();
      Tape tape;
      ddp.watch(tape);
      model(Tensor::ones({1, 8})).sum().backward();
      CHECK(std::isfinite(ddp.finish(1.0).norm.item()));
    }
    distributed::Ddp ddp(model, mesh, {}, {.shard = true});
    distributed::ShardedOptimizer optimizer(ddp, optim::AdamWOptions{.lr = 3e-4});
    const int micro_batches = 2;
    ddp.zero_grad();
    for (int i = 0; i < micro_batches; ++i) {
      const Tensor inputs = rand_normal({4, 8});
      Tape tape;
      const Tensor loss = model(inputs).square().sum() / (4.0 * world.size() * micro_batches);
      if (i + 1 == micro_batches) ddp.watch(tape);
      loss.backward();
    }
    optimizer.step(ddp.finish(1.0));
    optimizer.wait();
    const Tensor sum = model.up.weight.detach().clone();
    world.all().all_reduce(sum).wait();
    CHECK(test::mismatch(sum, model.up.weight * 2, 1e-6) == "");
  });
}

TEST_CASE("from PyTorch: what is different") {
  const Tensor x = Tensor::of({1, 2}, {2}).set_requires_grad();
  CHECK(!(x * x).requires_grad());  // no tape
  CHECK_THROWS_WITH_AS((void)(x + Tensor::ones({2}, DType::i64)), doctest::Contains("dtype"),
                       Error);
  CHECK_THROWS_AS(Tensor::ones({2}, DType::i64) / Tensor::ones({2}, DType::i64), Error);
  CHECK(Tensor::arange(0, 3).dtype() == DType::f32);
  CHECK_THROWS_AS((void)x.index_select(0, Tensor::of({-1}, {1}, DType::i64)), Error);
  {
    Tape tape;
    const Tensor y = x * x;
    CHECK_THROWS_AS(y.add_(x.detach()), Error);
    CHECK(values(grad(y.sum(), {Tensor::ones({2}).set_requires_grad()})[0]) == Values{0, 0});
  }
  {
    Tape tape;
    const Tensor loss = (x * x).sum();
    loss.backward();
    CHECK_THROWS_AS(loss.backward(), Error);
  }
  {
    Tape tape;
    const Tensor data = Tensor::ones({2}), loss = (x * data).sum();
    data.fill_(3);
    CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("changed in place"), Error);
  }
  const nn::Linear layer(2, 2);
  CHECK(values(layer.bias) == Values{0, 0});
  CHECK(Tensor::of({1, 2}).dtype() == DType::f32);
  CHECK(Tensor::from(std::vector<std::int64_t>{1}).dtype() == DType::i64);
  CHECK(values(Tensor::of({{1, 2}, {4, 3}}).argmax()) == Values{1, 0});
  CHECK(nn::RMSNorm(2).eps == 1e-5);
}

TEST_CASE("from PyTorch: recurrent modules") {
  nn::Gru gru(64, 128);
  nn::Lstm lstm(64, 128, {.layers = 2});
  const Tensor x = randn({3, 5, 64}), first = Tensor::zeros({1, 3, 128});
  const Tensor h0 = Tensor::zeros({2, 3, 128}), c0 = zeros_like(h0);
  auto [y, h] = gru(x, first);
  CHECK(test::different_bits(h[0], y.select(1, 4)) == "");
  auto [z, state] = lstm(x, {h0, c0});
  CHECK(state.h.shape() == Shape{2, 3, 128});
  CHECK(state.c.shape() == Shape{2, 3, 128});
  const Tensor row = x.reshape({1, 15, 64}), cu = Tensor::of({0, 5, 10, 15}, {4}, DType::i32);
  CHECK(test::mismatch(lstm(row, {}, {.cu_seqlens = cu}).y, z.reshape({1, 15, 128}), 1e-5) == "");
}

}  // namespace weft::from_pytorch_training_test
