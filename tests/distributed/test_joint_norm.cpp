// One norm, one count of zeros and one clip factor across all layouts of a model.
#include <doctest/doctest.h>

#include <optional>

#include "weft/distributed/sharded_optimizer.h"
#include "weft/tests/parallel_support.h"
#include "weft/tests/ranks.h"

namespace weft::distributed::joint_norm_test {
namespace {

/// Element i of a gradient or parameter: small integers; every fourth gradient element is 0.
double gradient_at(std::int64_t i) { return i % 4 == 0 ? 0 : static_cast<double>(i * 7 % 13 - 6); }
double parameter_at(std::int64_t i) { return static_cast<double>(i * 5 % 11 - 5); }

template <class F>
Tensor filled(const Shape& shape, std::int64_t first, F value) {
  std::vector<double> v(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = value(first + static_cast<std::int64_t>(i));
  return Tensor::from(std::span<const double>(v), shape).to(DType::f32);
}

constexpr std::int64_t kRows = 8, kWidth = 6, kExperts = 8, kExpertRows = 8;

/// One rank's shards of: a replicated weight, a weight with rows sharded over tp, a norm that sees
/// only this rank's tokens, experts sharded over ep and etp, and expert biases.
struct Held : nn::Module {
  Tensor plain, cut, norm, experts, biases;
  Layout layout;
  std::map<std::string, std::int64_t> first;  // index of the first element in the whole tensor

  explicit Held(const DeviceMesh& mesh) {
    const auto [tp, t] = std::pair{mesh.tp().size(), mesh.tp().rank()};
    const auto [ep, e] = std::pair{mesh.ep().size(), mesh.ep().rank()};
    const auto [etp, x] = std::pair{mesh.etp().size(), mesh.etp().rank()};
    make("plain", plain, {kRows, kWidth}, 0);
    make("cut", cut, {kRows / tp, kWidth}, 1000 + t * kRows / tp * kWidth);
    make("norm", norm, {kWidth}, 2000);
    // Hidden units are outermost, so that a rank's shard is contiguous when ep or etp is 1.
    const std::int64_t experts_here = kExperts / ep, rows_here = kExpertRows / etp;
    make("experts", experts, {experts_here * rows_here, kWidth},
         3000 + (e * kExpertRows * experts_here + x * experts_here * rows_here) * kWidth);
    make("biases", biases, {experts_here, kWidth}, 5000 + e * experts_here * kWidth);
    layout["cut"].tp_cut = true;
    layout["norm"].tp_partial = true;
    layout["experts"].expert = layout["experts"].tp_cut = true;
    layout["biases"].expert = true;
  }
  void visit(nn::Visitor& v) override {
    v("plain", plain);
    v("cut", cut);
    v("norm", norm);
    v("experts", experts);
    v("biases", biases);
  }
  // Sets gradients as a backward pass would: contributions that sum to the whole gradient.
  void set_gradients(const DeviceMesh& mesh) {
    for (const NamedTensor& p : named_parameters()) {
      const ParameterLayout& l = layout[p.name];
      const ProcessGroup& group = l.expert ? mesh.edp() : mesh.dp_cp();
      int rank = group.rank(), ranks = group.size();
      if (l.tp_partial) {
        rank = rank * mesh.tp().size() + mesh.tp().rank();
        ranks *= mesh.tp().size();
      }
      const Tensor g = rank == 0 ? filled(p.tensor.shape(), first[p.name], gradient_at)
                                 : Tensor::zeros(p.tensor.shape());
      // Contributions that cancel in the sum over the ranks.
      if (ranks % 2 == 0) g.add_(Tensor::full(g.shape(), rank % 2 == 0 ? 3 : -3));
      p.tensor.main_grad().copy_(g);
    }
  }

 private:
  void make(const char* name, Tensor& t, const Shape& shape, std::int64_t from) {
    t = filled(shape, from, parameter_at).set_requires_grad();
    first[name] = from;
  }
};

struct Whole {
  double gradient_norm = 0, parameter_norm = 0;
  std::int64_t zeros = 0;
};

Whole whole() {
  Whole out;
  const auto take = [&](std::int64_t first, std::int64_t size) {
    for (std::int64_t i = first; i < first + size; ++i) {
      out.gradient_norm += gradient_at(i) * gradient_at(i);
      out.parameter_norm += parameter_at(i) * parameter_at(i);
      out.zeros += gradient_at(i) == 0;
    }
  };
  take(0, kRows * kWidth);
  take(1000, kRows * kWidth);
  take(2000, kWidth);
  take(3000, kExperts * kExpertRows * kWidth);
  take(5000, kExperts * kWidth);
  out.gradient_norm = std::sqrt(out.gradient_norm);
  out.parameter_norm = std::sqrt(out.parameter_norm);
  return out;
}

}  // namespace

TEST_CASE("joint_norm: every value of every layout counts once") {
  const Whole want = whole();
  test::distributed_test({1, 2, 4, 8}, [&](World& w) {
    for (const int tp : {1, 2, 4})
      for (const int ep : {1, 2, 4, 8})
        for (const int etp : {1, 2}) {
          // Shards of experts are contiguous only if ep or etp is 1.
          if (w.size() % tp != 0 || w.size() % (ep * etp) != 0 || (ep > 1 && etp > 1)) continue;
          CAPTURE(tp);
          CAPTURE(ep);
          CAPTURE(etp);
          const DeviceMesh mesh(w, {.tp = tp, .ep = ep, .etp = etp});
          for (const bool shard : {false, true}) {
            Held model(mesh);
            Ddp ddp(model, mesh, model.layout,
                    {.bucket_size = 100, .shard = shard, .count_zeros = true});
            const auto adam = make_optimizer(ddp, optim::AdamWOptions{});
            model.set_gradients(mesh);
            const optim::GradClip clip = ddp.finish(1);
            CHECK(clip.norm.item() == doctest::Approx(want.gradient_norm).epsilon(1e-14));
            CHECK(clip.scale.item() ==
                  doctest::Approx(1 / (want.gradient_norm + 1e-6)).epsilon(1e-14));
            CHECK(ddp.zeros().item() == want.zeros);
            CHECK(adam->parameter_norm().item() ==
                  doctest::Approx(want.parameter_norm).epsilon(1e-14));
            if (shard) continue;
            // The gradients are complete on every rank.
            for (const NamedTensor& p : model.named_parameters())
              CHECK(test::different_bits(
                        p.tensor.main_grad(),
                        filled(p.tensor.shape(), model.first[p.name], gradient_at)) == "");
          }
        }
  });
}

TEST_CASE("joint_norm: gradients 3, 4 of experts and 12 of a dense weight give 13") {
  struct Three : nn::Module {
    Tensor expert, dense;
    void visit(nn::Visitor& v) override {
      v("expert", expert);
      v("dense", dense);
    }
  };
  test::distributed_test(2, [](World& w) {
    const DeviceMesh mesh(w, {.ep = 2});
    Three model;
    model.expert = Tensor::zeros({1}).set_requires_grad();
    model.dense = Tensor::zeros({1}).set_requires_grad();
    Layout layout;
    layout["expert"].expert = true;
    Ddp ddp(model, mesh, layout);
    model.expert.main_grad().fill_(w.rank() == 0 ? 3 : 4);
    model.dense.main_grad().fill_(6);
    const optim::GradClip clip = ddp.finish(1);
    CHECK(clip.norm.item() == 13);
    CHECK(clip.scale.item() == doctest::Approx(0.0769230710).epsilon(1e-9));
    CHECK(ddp.finish(20).scale.item() == doctest::Approx(20 / std::sqrt(25 + 576.)).epsilon(1e-6));
  });
}

TEST_CASE("joint_norm: uses the f32 master weights of bf16 parameters") {
  test::distributed_test({1, 2}, [](World& w) {
    const DeviceMesh mesh(w);
    test::Stack model(2, DType::bf16);
    Ddp ddp(model, mesh, {}, {.shard = true});
    ShardedOptimizer sgd(ddp, optim::SgdOptions{.lr = 1});
    std::vector<Tensor> copies;
    for (const Tensor& p : model.parameters()) {
      copies.push_back(p.detach().to(DType::f32));
      // Too small to change a bf16 value.
      const double step = 1e-5;
      p.main_grad().fill_(step / w.size());
      copies.back().add_(Tensor::full(p.shape(), -step));
    }
    const std::vector<Tensor> before = test::copies(model.parameters());
    sgd.step(ddp.finish());
    sgd.wait();
    double squares = 0;
    for (const Tensor& c : copies) squares += c.to(DType::f64).square().sum().item();
    CHECK(sgd.parameter_norm().item() == doctest::Approx(std::sqrt(squares)).epsilon(1e-7));
  });
}

TEST_CASE("joint_norm: an empty chain of optimizers is refused") {
  run_ranks(1, [](World& w) {
    const DeviceMesh mesh(w);
    test::Stack model(1);
    Ddp ddp(model, mesh);
    CHECK(test::error_of([&] { ChainedOptimizer(ddp, {}); }) ==
          "chained_optimizer: needs at least one optimizer, got none");
  });
}

TEST_CASE("joint_norm: a chain keeps its children's ratio through a warm-up from 0") {
  run_ranks(1, [](World& w) {
    const DeviceMesh mesh(w);
    test::Stack model(1);
    Ddp ddp(model, mesh);
    const auto children = [&](double first, double second) {
      std::vector<std::unique_ptr<ParallelOptimizer>> all;
      all.push_back(make_optimizer(ddp, optim::SgdOptions{.lr = first}, Members::dense));
      all.push_back(make_optimizer(ddp, optim::SgdOptions{.lr = second}, Members::experts));
      return all;
    };
    const auto second_lr = [&](std::vector<std::unique_ptr<ParallelOptimizer>> all) {
      ParallelOptimizer& second = *all[1];
      ChainedOptimizer chained(ddp, std::move(all));
      chained.set_lr(0.5);
      CHECK(chained.lr() == 0.5);
      return second.lr();
    };
    CHECK(second_lr(children(0.25, 1)) == 2);
    auto cold = children(0.25, 1);
    for (const auto& child : cold) child->set_lr(0);
    CHECK(second_lr(std::move(cold)) == 2);
    auto moved = children(0.25, 1);
    moved[1]->set_lr(0.125);
    CHECK(second_lr(std::move(moved)) == 0.25);
    CHECK(second_lr(children(0, 0)) == 0.5);
    CHECK(test::error_of([&] { ChainedOptimizer(ddp, children(0, 1)); }) ==
          "chained_optimizer: the first optimizer must be made with a learning rate above 0, to "
          "which that of the others, 1, keeps its ratio");
  });
}

TEST_CASE("joint_norm: a rank without experts or gradients makes the same collectives") {
  struct Uneven : nn::Module {
    Tensor dense, experts, bias;
    void visit(nn::Visitor& v) override {
      v("dense", dense);
      v("experts", experts);
      v("bias", bias);
    }
  };
  test::distributed_test({2, 4}, [](World& w) {
    const DeviceMesh mesh(w, {.ep = w.size()});
    for (const bool shard : {false, true}) {
      Uneven model;
      model.dense = Tensor::ones({4, 4}).set_requires_grad();
      model.experts = Tensor::ones({w.rank() == 0 ? 3 : 0, 4}).set_requires_grad();
      model.bias = Tensor::ones({w.rank() == 0 ? 3 : 0}).set_requires_grad();
      Layout layout;
      layout["experts"].expert = layout["bias"].expert = true;
      Ddp ddp(model, mesh, layout, {.bucket_size = 8, .shard = shard});
      // One optimizer per kind. The experts' optimizer has nothing to do on most ranks.
      std::vector<std::unique_ptr<ParallelOptimizer>> kinds;
      kinds.push_back(make_optimizer(ddp, optim::AdamWOptions{.lr = 0.1}, Members::dense));
      kinds.push_back(make_optimizer(ddp, optim::SgdOptions{.lr = 0.2}, Members::experts));
      ChainedOptimizer chained(ddp, std::move(kinds));
      chained.set_lr(0.05);
      for (int step = 0; step < 2; ++step) {
        chained.wait();
        chained.zero_grad();
        Tape tape;
        // A rank without tokens for its experts does not use them.
        Tensor loss = sum(square(model.dense));
        if (step == 1 && w.rank() == 0)
          loss = add(loss, add(sum(square(model.experts)), sum(square(model.bias))));
        ddp.watch(tape);
        loss.backward(Tensor::full({}, 1.0 / w.size()));
        const optim::GradClip clip = ddp.finish();
        CHECK(clip.norm.item() > 0);
        CHECK_FALSE(chained.step(clip).skipped);
        CHECK(chained.parameter_norm().item() > 0);
      }
      chained.wait();
      CHECK(chained.lr() == 0.05);
      CHECK(chained.steps() == 2);
      CHECK(chained.state().contains("experts.momentum") == false);
      CHECK(chained.state().contains("dense.m") == (w.rank() == 0));
      CHECK(model.dense.max().item() == doctest::Approx(0.9 - 2 * 0.0005).epsilon(1e-3));
      // 1 - 0.1 * 2 / ranks: the second step's gradient is the sum over the ranks that used them.
      if (w.rank() == 0)
        CHECK(model.experts.max().item() == doctest::Approx(1 - 0.1 * 2 / w.size()));
    }
    test::check_same_traces(w);
  });
}

}  // namespace weft::distributed::joint_norm_test
