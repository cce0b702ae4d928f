// Every Weft line of docs/from_pytorch.md, run and compared with what PyTorch documents for the
// line beside it. scripts/check_readme.py fails when a line of the page is not in this file.
#include <doctest/doctest.h>

#include <cmath>
#include <sstream>

#include "weft/core/cuda.h"
#include "weft/distributed/sharded_optimizer.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"
#include "weft/weft.h"

namespace weft::from_pytorch_test {
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

TEST_CASE("from PyTorch: creation") {
  CHECK(Tensor::empty({2, 3}).shape() == Shape{2, 3});
  CHECK(values(Tensor::zeros({2}, DType::f64)) == Values{0, 0});
  CHECK(values(Tensor::ones({2})) == Values{1, 1});
  CHECK(values(Tensor::full({2}, 7)) == Values{7, 7});
  CHECK(values(Tensor::arange(0, 6, 2, DType::i64)) == Values{0, 2, 4});
  CHECK(values(Tensor::eye(2)) == Values{1, 0, 0, 1});
  const Tensor x = Tensor::of({1, 2, 3, 4}, {2, 2});
  CHECK(values(x.select(0, 1)) == Values{3, 4});

  std::vector<float> v = {1, 2, 3, 4};
  const Tensor copy = Tensor::from(v, {2, 2});
  CHECK(Tensor::from(v).shape() == Shape{4});
  CHECK(values(Tensor::of({1, 2})) == Values{1, 2});
  CHECK(Tensor::of({{1, 2}, {3, 4}}).shape() == Shape{2, 2});
  CHECK(values(Tensor::linspace(0, 1, 5)) == Values{0, 0.25, 0.5, 0.75, 1});
  const Tensor shared = Tensor::wrap(v.data(), {2, 2}, DType::f32);
  v[0] = 9;
  CHECK(values(copy) == Values{1, 2, 3, 4});
  CHECK(values(shared) == Values{9, 2, 3, 4});
  CHECK(values(zeros_like(x)) == Values{0, 0, 0, 0});
  CHECK(empty_like(x).shape() == x.shape());
}

TEST_CASE("from PyTorch: looking at a tensor") {
  const Tensor x = Tensor::of({1, 2, 3, 4, 5, 6}, {2, 3});
  CHECK(x.shape() == Shape{2, 3});
  CHECK(x.dim(-1) == 3);
  CHECK(x.ndim() == 2);
  CHECK(x.numel() == 6);
  CHECK(x.dtype() == DType::f32);
  CHECK(x.device() == kCpu);
  CHECK(x.strides() == Shape{3, 1});
  CHECK(x.is_contiguous());
  const Tensor loss = x.sum();
  CHECK(loss.item() == 21);
  std::vector<double> out(6);
  x.copy_to(out);
  CHECK(to_vector<float>(x).size() == out.size());
  const Tensor y = x.clone();
  CHECK(equal(x, y));
  CHECK(allclose(x, y));
  CHECK_FALSE(!x.defined());
  CHECK(out == Values{1, 2, 3, 4, 5, 6});
  const float* p = x.data<float>();
  CHECK(p[4] == 5);
  std::ostringstream cout;
  cout << x;
  CHECK(cout.str().find("f32, cpu") != std::string::npos);
}

TEST_CASE("from PyTorch: indexing") {
  const Tensor x = Tensor::arange(0, 12).view({3, 4});
  CHECK(values(x.select(0, -1)) == Values{8, 9, 10, 11});
  CHECK(values(x.slice(1, 1, 3)) == Values{1, 2, 5, 6, 9, 10});
  CHECK(values(x.slice(1, -1)) == Values{3, 7, 11});
  CHECK(values(x.slice(0, 0, kEnd, 2)) == Values{0, 1, 2, 3, 8, 9, 10, 11});
  CHECK(values(x.narrow(1, 0, 1)) == Values{0, 4, 8});
  const Tensor index = Tensor::of({2, 0}, {2}, DType::i64);
  CHECK(values(x.index_select(0, index)) == Values{8, 9, 10, 11, 0, 1, 2, 3});
  const Tensor places = Tensor::of({3, 2, 1}, {3, 1}, DType::i64);
  CHECK(values(x.gather(1, places)) == Values{3, 6, 9});
  CHECK(values(scatter_add(x, 1, places, Tensor::ones({3, 1})).select(0, 0)) == Values{0, 1, 2, 4});

  CHECK(values(x[-1]) == Values{8, 9, 10, 11});
  CHECK(x[0][2].item() == 2);
  x[0].fill_(5);
  CHECK(values(x[0]) == Values{5, 5, 5, 5});
  x[0] += 1;
  CHECK(values(x[0]) == Values{6, 6, 6, 6});
  const Tensor y = Tensor::ones({3, 2});
  x.slice(1, 1, 3).copy_(y);
  CHECK(values(x.select(0, 2)) == Values{8, 1, 1, 11});
  const Tensor mask = x > 7;
  CHECK(values(masked_fill(x, mask, 0)[2]) == Values{0, 1, 1, 0});
  CHECK(equal(masked_fill(x, mask, 0), where(mask, 0, x)));
}

TEST_CASE("from PyTorch: views and joins") {
  const Tensor x = Tensor::arange(0, 24).view({2, 3, 4});
  CHECK(x.view({6, -1}).shape() == Shape{6, 4});
  CHECK(x.reshape({4, -1}).shape() == Shape{4, 6});
  CHECK(x.permute({2, 0, 1}).shape() == Shape{4, 2, 3});
  CHECK(x.transpose(0, 1).shape() == Shape{3, 2, 4});
  CHECK(x.t().shape() == Shape{2, 4, 3});
  CHECK(x.unsqueeze(0).shape() == Shape{1, 2, 3, 4});
  CHECK(x.unsqueeze(0).squeeze(0).shape() == x.shape());
  CHECK(Tensor::ones({3, 1}).expand({3, 4}).strides()[1] == 0);
  CHECK(x.flatten(1).shape() == Shape{2, 12});
  CHECK(x.t().contiguous().is_contiguous());
  CHECK(x.clone().raw() != x.raw());
  const Tensor a = Tensor::ones({2, 2}), b = Tensor::zeros({2, 2});
  CHECK(cat({a, b}, 1).shape() == Shape{2, 4});
  CHECK(stack({a, b}, 0).shape() == Shape{2, 2, 2});
  CHECK(x.split(2, 1).size() == 2);
  CHECK(x.split({1, 2}, 1)[1].shape() == Shape{2, 2, 4});
  CHECK(chunk(x, 2).size() == 2);
  CHECK(values(flip(x, 0)[1]) == values(x[0]));
  CHECK(repeat(a, {2, 1}).shape() == Shape{4, 2});
  CHECK(values(triu(a, 1)) == Values{0, 1, 0, 0});
  const Tensor u = Tensor::of({1, 2}), v = Tensor::of({3, 4});
  CHECK(values(outer(u, v)) == Values{3, 4, 6, 8});
  CHECK(dot(u, v).item() == 11);
  CHECK(pad(x, -1, 1, 2).shape() == Shape{2, 3, 7});
  CHECK(values(roll(Tensor::arange(0, 3), 1, 0)) == Values{2, 0, 1});
  CHECK(values(tril(a)) == Values{1, 0, 1, 1});
}

TEST_CASE("from PyTorch: arithmetic") {
  const Tensor a = Tensor::of({1, 2, 3, 4}, {2, 2}), b = Tensor::of({2, 2, 2, 2}, {2, 2});
  CHECK(values(a + b) == Values{3, 4, 5, 6});
  CHECK(values(1 - a / b) == Values{0.5, 0, -0.5, -1});
  CHECK(values(matmul(a, b)) == Values{6, 6, 14, 14});
  CHECK(values(a.pow(2)) == Values{1, 4, 9, 16});
  CHECK(values(a.exp().log().select(0, 0)) == Values{1, 2});
  CHECK(values(a.clamp(2, 3)) == Values{2, 2, 3, 3});
  CHECK(values(maximum(a, b)) == Values{2, 2, 3, 4});
  CHECK(values(where(a > b, a, b)) == Values{2, 2, 3, 4});
  CHECK((a <= b).dtype() == DType::boolean);

  const Tensor x = a.clone();
  x.add_(b, 0.5);
  x.mul_(2);
  CHECK(values(x) == Values{4, 6, 8, 10});
  x += b;
  x *= 2;
  CHECK(values(x) == Values{12, 16, 20, 24});
  x.zero_();
  x.copy_(b);
  CHECK(values(x) == values(b));
  x.copy_(a);
  CHECK(values(logical_and(x > 1, x < 3)) == Values{0, 1, 0, 0});
  const Tensor mask = x > 7;
  CHECK(values(logical_not(mask)) == Values{1, 1, 1, 1});
  if (any(x > 7).item<bool>()) FAIL("none is");
  const Tensor least = a.min(), most = a.max();
  CHECK(least.item() < most.item());
  CHECK(all(isfinite(x)).item<bool>());
  CHECK(values(isnan(x)) == Values{0, 0, 0, 0});
  CHECK(values(floor(x)) == values(x));
  CHECK(values(round(x)) == values(x));
  CHECK(values(sign(x)) == Values{1, 1, 1, 1});
  CHECK(test::mismatch(sin(x), (1 - cos(x).square()).sqrt() * sign(sin(x)), 1e-5) == "");
  CHECK(test::mismatch(log1p(x), (x + 1).log(), 1e-5) == "");
  CHECK(erf(x).max().item() < 1.001);
}

TEST_CASE("from PyTorch: reductions and order") {
  const Tensor x = Tensor::of({1, 4, 2, 3}, {2, 2});
  CHECK(x.sum().item() == 10);
  CHECK(x.sum({0, 1}, true).shape() == Shape{1, 1});
  CHECK(values(x.mean(-1)) == Values{2.5, 2.5});
  CHECK(test::mismatch(stddev(x, {-1}), var(x, {-1}).sqrt(), 0) == "");
  CHECK(values(prod(x, 0)) == Values{2, 12});
  CHECK(values(var(x, {-1})) == Values{4.5, 0.5});
  CHECK(values(x.max(-1)) == Values{4, 3});
  CHECK(values(x.argmax(-1)) == Values{1, 1});
  CHECK(values(topk(x, 1).indices) == Values{1, 1});
  CHECK(values(sort(x, -1, true).values) == Values{4, 1, 3, 2});
  CHECK(values(cumsum(x, 0)) == Values{1, 4, 3, 7});
  CHECK(norm(x).item() == doctest::Approx(std::sqrt(30)));
  CHECK(test::mismatch(norm(x, {1}).square(), x.square().sum(1), 1e-6) == "");
  CHECK(logsumexp(x).shape() == Shape{2});
}

TEST_CASE("from PyTorch: functions of layers") {
  const Tensor x = rand_normal({2, 4}), w = rand_normal({3, 4}), b = Tensor::zeros({3});
  CHECK(x.softmax(-1).sum().item() == doctest::Approx(2));
  CHECK(log_softmax(x).max().item() < 0);
  CHECK(test::mismatch(gelu(x), gelu(x, Gelu::erf), 0.01) == "");
  CHECK(silu(x).shape() == x.shape());
  CHECK(leaky_relu(x).shape() == x.shape());
  CHECK(elu(x).min().item() > -1);
  CHECK(test::mismatch(linear(x, w, b), matmul(x, w.t()) + b, 1e-5) == "");
  CHECK(layer_norm(x).shape() == x.shape());
  CHECK(rms_norm(x, Tensor::ones({4})).shape() == x.shape());
  const Tensor ids = Tensor::of({2, 0}, {2}, DType::i64);
  CHECK(values(embedding(w, ids)) == values(w.index_select(0, ids)));
  CHECK(values(one_hot(ids, 3)) == Values{0, 0, 1, 1, 0, 0});
  CHECK(values(dropout(Tensor::ones({2}), 0.5, next_random_key(), false)) == Values{1, 1});
  const Tensor q = rand_normal({1, 5, 2, 8}), k = q, v = q;  // (batch, tokens, heads, width)
  CHECK(attention(q, k, v, {.causal = true}).shape() == q.shape());
}

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

TEST_CASE("from PyTorch: random numbers") {
  manual_seed(1);
  const Values first = values(randn({2, 3}));
  manual_seed(1);
  CHECK(values(randn({2, 3})) == first);
  CHECK(rand_uniform({2, 3}).max().item() < 1);
  CHECK(rand({2, 3}).max().item() < 1);
  CHECK(randint(0, 5, {8}).max().item() < 5);
  CHECK(randperm(10).sum().item() == 45);
  const Tensor weights = Tensor::of({0, 1}, {2});
  CHECK(values(multinomial(weights, 2, next_random_key())) == Values{1, 1});
  const Tensor x = Tensor::empty({100});
  normal_(x, next_random_key(), 0, 0.02);
  CHECK(x.abs().max().item() < 1);
  const RandomKey key{.seed = 1, .stream = stream_of("noise")};
  CHECK(values(uniform_(Tensor::empty({2}), key)) == values(uniform_(Tensor::empty({2}), key)));
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

}  // namespace weft::from_pytorch_test
