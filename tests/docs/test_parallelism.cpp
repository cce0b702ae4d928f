// The code of docs/parallelism.md, section 8.
#include <doctest/doctest.h>

#include <cmath>

#include "weft/autograd/matmul.h"
#include "weft/distributed/checkpoint.h"
#include "weft/distributed/model_slices.h"
#include "weft/distributed/parallel_optimizer.h"
#include "weft/distributed/parallelize.h"
#include "weft/distributed/redistribute.h"
#include "weft/tests/model_layouts.h"
#include "weft/tests/parallel_support.h"
#include "weft/tests/ranks.h"
#include "weft/tests/temp_folder.h"

namespace weft::distributed::parallelism_test {
namespace {

// x (..., dim) -> (..., dim), two products
struct Feed : nn::Module {
  nn::Linear up, down;
  explicit Feed(std::int64_t dim) : up(dim, 4 * dim), down(4 * dim, dim) {}
  Tensor operator()(const Tensor& x) const { return down(gelu(up(x))); }
  void visit(nn::Visitor& v) override {
    v("up", up);
    v("down", down);
  }
};

// x (..., dim) -> (..., dim), a layer with products of its own
struct Gated : nn::Module {
  Tensor scale, in, out;
  explicit Gated(std::int64_t dim)
      : scale(nn::make_parameter({dim}, nn::Init::constant(1))),
        in(nn::make_parameter({dim, 2 * dim}, nn::Init::normal(0.3))),
        out(nn::make_parameter({2 * dim, dim}, nn::Init::normal(0.3))) {}
  Tensor operator()(const Tensor& x) const {
    const nn::Shard& s = nn::shard_of(*this);
    const Tensor h = scale * (s.enter ? s.enter(x) : x);
    const Tensor y = matmul(sigmoid(matmul(h, in)), out);
    return s.leave ? s.leave(y) : y;
  }
  unsigned shard_members() const override { return nn::Shard::kEnter | nn::Shard::kLeave; }
  void visit(nn::Visitor& v) override {
    v("scale", scale, nn::Init::constant(1));
    v("in", in, nn::Init::normal(0.3));
    v("out", out, nn::Init::normal(0.3));
  }
};

struct Model : nn::Module {
  Feed feed;
  Gated gated;
  nn::LayerNorm norm;
  nn::Linear last;
  explicit Model(std::int64_t dim) : feed(dim), gated(dim), norm(dim), last(dim, 3) {}
  Tensor operator()(const Tensor& x) const {
    const Tensor y = x + at_use(feed)(x);
    const Tensor z = x + at_use(gated)(y);
    const Tensor n = at_use(norm)(z);
    return at_use(last)(n);
  }
  // With fsdp the part's weights are gathered now, and those of the part before are freed.
  template <class Part>
  const Part& at_use(const Part& part) const {
    if (const nn::Shard& s = nn::shard_of(*this); s.before_use) s.before_use(part);
    return part;
  }
  unsigned shard_members() const override { return nn::Shard::kBeforeUse; }
  void visit(nn::Visitor& v) override {
    v("feed", feed);
    v("gated", gated);
    v("norm", norm);
    v("last", last);
  }
};

Model make(std::int64_t dim) {
  const nn::DeviceScope in_f64(kCpu, DType::f64);
  Model model(dim);
  nn::init(model, 5);
  return model;
}

Tensor input() { return test::random({4, 6, 8}, 2, DType::f64); }

const Plan& plan() {
  static const Plan made = [] {
    const auto shard = [](int dim) { return AxisPlacement::shard(dim); };
    const Plan plan{
        .rules = {{"feed.up",
                   Placement::placed({.parameters = {{"weight", shard(0)}}, .output = shard(-1)})},
                  {"feed.down",
                   Placement::placed({.parameters = {{"weight", shard(1)}}, .input = shard(-1)})},
                  {"gated", Placement::placed({.parameters = {{"in", shard(1)}, {"out", shard(0)}},
                                               .computed = AxisPlacement::partial()})},
                  {".*", Placement::whole(false)}}};
    return plan;
  }();
  return made;
}

// Without the gated part, whose scale has a gradient that must be summed over tp.
Plan plan_of_feed() {
  Plan only = plan();
  only.rules.erase(only.rules.begin() + 2);
  return only;
}

std::map<std::string, Tensor> gradients(const Model& model, const Tensor& x, const Tensor& weight) {
  Tape tape;
  sum(mul(model(x), weight)).backward();
  std::map<std::string, Tensor> out{{"x", x.grad()}};
  for (const NamedTensor& p : model.named_parameters()) out[p.name] = p.tensor.grad();
  return out;
}

// Three steps of AdamW on this rank's part of four rows.
std::unique_ptr<ParallelOptimizer> train(Model& model, const DeviceMesh& mesh, const Layout& layout,
                                         const DdpOptions& options) {
  const ProcessGroup& batch = mesh.dp_cp();  // with user axes that sum gradients
  const std::int64_t rows = 4 / batch.size(), first = rows * batch.rank();
  const Tensor x = input().narrow(0, first, rows).clone();
  auto adam = make_optimizer(model, mesh, layout, optim::AdamWOptions{.lr = 1e-2}, options);
  nn::change_shard(model, [&](nn::Shard& s) {
    s.before_use = [&](const nn::Module& part) { adam->wait(part); };
  });
  for (int step = 0; step < 3; ++step) {
    adam->wait();
    adam->zero_grad();
    Tape tape;
    const Tensor loss = sum(square(model(x)));
    adam->watch(tape);
    loss.backward(test::cotangent(loss, 4 * 6 * 3));
    adam->step(adam->finish(0.5));
  }
  adam->wait();
  adam->restore_values();
  nn::change_shard(model, [](nn::Shard& s) { s.before_use = nullptr; });
  return adam;
}

}  // namespace

TEST_CASE("parallelism: a user's modules over tp have the gradients of one rank") {
  test::distributed_test({1, 2, 4}, [](World& w) {
    Tensor x = input();
    x.set_requires_grad(true);
    const Tensor weight = test::random({4, 6, 3}, 3, DType::f64);
    const Model whole = make(8);
    const auto want = gradients(whole, x, weight);
    x.zero_grad();
    Model model = make(8);
    DeviceMesh mesh(w, {.dp = 1, .tp = w.size()});
    const Layout layout = parallelize(model, mesh, plan());
    CHECK(model.feed.up.weight.dim(0) == 32 / w.size());
    CHECK(model.gated.out.dim(0) == 16 / w.size());
    for (const auto& [name, got] : gradients(model, x, weight)) {
      const Tensor all = name == "x" ? got : test::whole_of(got, layout.at(name), mesh.tp());
      CHECK_MESSAGE(test::distance({all}, {want.at(name)}) < 1e-12, name);
    }
    test::check_same_traces(w);
  });
}

TEST_CASE("parallelism: a user's plan trains over tp and dp, sharded too, and is saved") {
  Model alone = make(8);
  SlicedTensors alone_state;
  run_ranks(1, [&](World& w) { alone_state = train(alone, DeviceMesh(w), {}, {})->state(); });
  struct Case {
    Degrees degrees;
    bool shard = false, fsdp = false, over_chain = false;
  };
  const auto chain = [](bool sums) { return std::vector<UserAxis>{{"chain", 2, sums}}; };
  for (const auto& [degrees, shard, fsdp, over_chain] :
       {Case{{.dp = 2, .tp = 2}}, Case{{.dp = 2, .tp = 2}, true},
        Case{{.dp = 2, .tp = 2}, true, true}, Case{{.dp = 2, .tp = 2, .axes = chain(false)}},
        Case{{.dp = 2, .tp = 2, .axes = chain(false)}, true},
        Case{{.dp = 2, .tp = 2, .axes = chain(false)}, true, true},
        Case{{.dp = 2, .tp = 2, .axes = chain(true)}},
        Case{{.dp = 2, .tp = 2, .axes = chain(true)}, true},
        Case{{.dp = 2, .tp = 2, .axes = chain(true)}, true, true},
        Case{{.dp = 2, .tp = 2, .dp_replicate = 2, .axes = chain(true)}, true, true},
        Case{{.dp = 2, .tp = 2, .axes = chain(false)}, false, false, true},
        Case{{.dp = 2, .tp = 2, .axes = chain(false)}, true, false, true},
        Case{{.dp = 2, .tp = 2, .axes = chain(false)}, true, true, true}}) {
    const test::TempFolder out;
    std::map<std::string, Tensor> saved;
    run_ranks(degrees.axes.empty() ? 4 : 8,
              [&, d = degrees, over = over_chain ? "chain" : "tp",
               options = DdpOptions{.bucket_size = 100, .shard = shard, .fsdp = fsdp}](World& w) {
                DeviceMesh mesh(w, d);
                Model model = make(8);
                ProcessGroup& group = mesh.group(over);
                const Layout layout =
                    parallelize(model, group, &group == &mesh.tp() ? plan() : plan_of_feed());
                const auto adam = train(model, mesh, layout, options);
                for (const NamedTensor& p : model.named_parameters()) {
                  ParameterLayout held = layout.at(p.name);
                  held.tp_partial = false;  // it describes gradients
                  held.tp_cut |= !held.cut_over.empty();
                  const Tensor all = test::whole_of(p.tensor.detach(), held, group);
                  if (w.rank() == 0) saved[p.name] = all;
                }
                save_checkpoint(w, out.path(), 3, model_slices(model.state_dict(), mesh, layout),
                                adam->state(), "{}");
              });
    run_ranks(1, [&](World& w) {
      const auto found = find_checkpoint(w, out.path());
      REQUIRE(found);
      const ShardFiles files(found->shards("model"));
      Model model = make(8);
      model.load_state_dict(read_model(model.state_dict(), {}, files));
      const auto adam =
          make_optimizer(model, DeviceMesh(w), {}, optim::AdamWOptions{.lr = 1e-2}, {});
      adam->load_state(ShardFiles(found->shards("optim")));
      CHECK(adam->steps() == 3);
      const NamedTensors want = alone.named_parameters(), got = model.named_parameters();
      for (std::size_t i = 0; i < got.size(); ++i) {
        CAPTURE(got[i].name);
        CHECK(test::different_bits(got[i].tensor.detach(), saved.at(got[i].name)) == "");
        CHECK(test::distance({got[i].tensor}, {want[i].tensor}) < 1e-9);
      }
      for (const auto& [name, state] : adam->state()) {
        CAPTURE(name);
        CHECK(test::distance({state.values}, {alone_state.at(name).values}) < 1e-9);
      }
    });
  }
}

TEST_CASE("parallelism: tokens cut between the products, as with sp") {
  test::distributed_test({2, 4}, [](World& w) {
    const auto shard = [](int dim) { return AxisPlacement::shard(dim); };
    const Plan cut{
        .rules = {{"feed.up", Placement::placed({.parameters = {{"weight", shard(0)}},
                                                 .input = shard(0),
                                                 .output = shard(-1)})},
                  {"feed.down", Placement::placed({.parameters = {{"weight", shard(1)}},
                                                   .input = shard(-1),
                                                   .output = shard(0)})},
                  {"gated", Placement::placed({.parameters = {{"in", shard(1)}, {"out", shard(0)}},
                                               .input = shard(0),
                                               .output = shard(0),
                                               .used = AxisPlacement::replicate(),
                                               .computed = AxisPlacement::partial()})},
                  {"last", Placement::placed({.input = shard(0), .output = shard(0)})},
                  {".*", Placement::whole(true)}}};
    Tensor x = input();
    x.set_requires_grad(true);
    const Tensor weight = test::random({4, 6, 3}, 3, DType::f64);
    const auto want = gradients(make(8), x, weight);
    Model model = make(8);
    DeviceMesh mesh(w, {.dp = 1, .tp = w.size()});
    const Layout layout = parallelize(model, mesh, cut);
    const auto own = [&](const Tensor& t) {
      const std::int64_t rows = 4 / w.size();
      return t.narrow(0, w.rank() * rows, rows).clone();
    };
    Tensor part = own(x.detach());
    part.set_requires_grad(true);
    for (const auto& [name, got] : gradients(model, part, own(weight))) {
      const Tensor all = name == "x" ? got : test::whole_of(got, layout.at(name), mesh.tp());
      const Tensor expected = name == "x" ? own(want.at(name)) : want.at(name);
      CHECK_MESSAGE(test::distance({all}, {expected}) < 1e-12, name);
    }
  });
}

TEST_CASE("parallelism: rows over dp become columns over tp") {
  test::distributed_test(4, [](World& w) {
    DeviceMesh mesh(w, {.dp = 2, .tp = 2});
    const Tensor whole = test::random({1024, 512}, 1);
    const Tensor x = whole.narrow(0, 512 * mesh.dp().rank(), 512);
    const MeshAxes axes{&mesh.dp(), &mesh.tp()};
    const Placements rows{AxisPlacement::shard(0), AxisPlacement::replicate()};
    const Placements columns{AxisPlacement::replicate(), AxisPlacement::shard(1)};
    Tensor y =
        redistribute(x, {1024, 512}, axes, rows, columns);  // x: this rank's rows; y: its columns
    CHECK(test::different_bits(y, whole.narrow(1, 256 * mesh.tp().rank(), 256)) == "");
  });
}

TEST_CASE("parallelism: errors of placements of modules") {
  const auto world = fake_world(0, 2);
  const auto error = [&](const char* pattern, const ModulePlacements& m, std::int64_t dim = 8) {
    Model model = make(dim);
    return test::error_of([&] {
      parallelize(model, world->all(),
                  {.rules = {{pattern, Placement::placed(m)}, {".*", Placement::whole(false)}}});
    });
  };
  const AxisPlacement rows = AxisPlacement::shard(0), sum = AxisPlacement::partial();
  CHECK(error("last", {.parameters = {{"weight", rows}}}) ==
        "parallelize: last.weight is [3, 8](S(0)), which does not divide among tp 2");
  CHECK(error("gated", {.parameters = {{"inner", rows}}}) ==
        "parallelize: gated has no parameter inner");
  CHECK(error("gated", {.parameters = {{"in", sum}}}) ==
        "parallelize: gated.in must be R or a shard, got P(sum)");
  CHECK(error("norm", {.input = rows, .used = AxisPlacement::replicate()}) ==
        "parallelize: the rule for norm does not fit a LayerNorm(8)");
  CHECK(error("gated", {.output = sum}) ==
        "parallelize: gated must take and give R or a shard, got R, used as R, and P(sum)");
  CHECK(error("gated", {.used = rows}) ==
        "parallelize: gated computes R from S(0), which has no gradient; state P(sum) or a shard");
  CHECK(error("feed.up", {.parameters = {{"weight", rows}, {"bias", AxisPlacement::replicate()}},
                          .output = AxisPlacement::shard(-1)}) ==
        "parallelize: feed.up.bias must be S(0) by the output S(-1), got R");
  run_ranks(2, [](World& w) {
    DeviceMesh mesh(w, {.axes = {{.name = "chain", .size = 2}}});
    Model model = make(8);
    CHECK(test::error_of([&] { parallelize(model, mesh.group("chain"), plan()); }) ==
          "parallelize: gated.scale has a gradient of which each rank has a part; those are summed "
          "over tp only, got the group chain");
  });
}

TEST_CASE("parallelism: an axis of the user's own") {
  test::distributed_test(8, [](World& w) {
    DeviceMesh mesh(w, {.dp = 2, .tp = 2, .axes = {{.name = "chain", .size = 2}}});
    ProcessGroup& chain = mesh.group("chain");  // ranks 4 apart: dp and tp are inside
    const MeshAxes axes{&mesh.dp(), &chain};
    const Placements held{AxisPlacement::shard(0), AxisPlacement::partial()};
    const Placements wanted{AxisPlacement::replicate(), AxisPlacement::shard(1)};
    const Tensor whole = test::random({6, 4}, 1, DType::f64);
    const Tensor x = (whole * (chain.rank() + 1.0)).narrow(0, 3 * mesh.dp().rank(), 3).clone();
    const Tensor y = redistribute(x, {6, 4}, axes, held, wanted);  // the sum's columns
    CHECK(chain.ranks() == std::vector{w.rank() % 4, w.rank() % 4 + 4});
    CHECK(test::distance({y}, {(whole * 3.0).narrow(1, 2 * chain.rank(), 2)}) < 1e-12);
  });
}

TEST_CASE("parallelism: a parameter that is cut over the user's axis is counted and saved once") {
  const test::TempFolder out;
  const Tensor value = test::random({6, 4}, 1, DType::f64);
  const Tensor x = test::random({6, 4}, 2, DType::f64);
  run_ranks(8, [&](World& w) {
    DeviceMesh mesh(w, {.dp = 2, .tp = 2, .axes = {{.name = "chain", .size = 2}}});
    const nn::ShardSpec part =
        shard_spec({6, 4}, {AxisPlacement::shard(1)}, {&mesh.group("chain")});
    struct Columns : nn::Module {
      Tensor weight;
      void visit(nn::Visitor& v) override { v("weight", weight); }
    } model;
    const std::int64_t first = 2 * mesh.group("chain").rank();
    model.weight = value.narrow(1, first, 2).clone();
    model.weight.set_requires_grad(true);
    const Layout layout{{"weight", {.spec = part, .cut_over = {"chain"}}}};
    Ddp ddp(model, mesh, layout);
    Tape tape;
    const Tensor loss = sum(mul(model.weight, x.narrow(1, first, 2)));
    ddp.watch(tape);
    loss.backward();
    // Twice the gradient, from the two ranks of dp.
    const double norm = std::sqrt(4 * sum(square(x)).item());
    CHECK(ddp.finish(0).norm.item() == doctest::Approx(norm).epsilon(1e-12));
    save_checkpoint(w, out.path(), 1, model_slices(model.state_dict(), mesh, layout), {}, "{}");
  });
  run_ranks(1, [&](World& w) {
    const auto found = find_checkpoint(w, out.path());
    REQUIRE(found);
    CHECK(test::different_bits(ShardFiles(found->shards("model")).whole("weight"), value) == "");
  });
}

}  // namespace weft::distributed::parallelism_test
