#include <doctest/doctest.h>

#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "weft/autograd/attention.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/layer_norm.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/gemm.h"
#include "weft/core/profile.h"
#include "weft/core/profile_table.h"
#include "weft/optim/adamw.h"
#include "weft/tests/support.h"

namespace weft::profile_test {
namespace {

using test::error_of;

/// Sums of the entries by "phase;scopes;op".
std::map<std::string, KernelWork> by_place(const Profiler& profile) {
  std::map<std::string, KernelWork> places;
  for (const Profiler::Entry& e : profile.entries()) {
    std::string place = e.phase;
    for (const std::string& s : e.scopes) place += ';' + s;
    places[place + ';' + e.label()].add(e.work);
  }
  return places;
}

void refuses_ones(const Tensor& x) { check(x.data<float>()[0] != 1, "refused"); }

template <class F>
KernelWork profiled(const char* label, const F& f) {
  Profiler profile;
  profile.start("once");
  f();
  profile.stop();
  return by_place(profile)[std::string("once;") + label];
}

}  // namespace

TEST_CASE("profile: calls, operations and bytes of each op by phase") {
  const Tensor a = Tensor::ones({3, 4}).set_requires_grad(), b = Tensor::ones({4, 5});
  Profiler profile;
  for (int step = 0; step < 2; ++step) {
    profile.start("forward");
    Tape tape;
    const Tensor loss = sum(matmul(a, b));
    profile.phase("backward");
    loss.backward();
    profile.stop();
  }
  CHECK(profile.spans() == 2);
  auto places = by_place(profile);
  const KernelWork& forward = places["forward;matmul"];
  CHECK(forward.calls == 2);
  CHECK(forward.flops == 2 * 2 * 3 * 4 * 5);
  CHECK(forward.bytes == 2 * 4 * (12 + 20 + 15));
  CHECK(places["backward;matmul"].flops == 2 * 2 * 3 * 4 * 5);
  CHECK(places["forward;sum"].calls == 2);
  double seconds = 0;
  for (const auto& [place, e] : places) {
    CHECK_MESSAGE(e.seconds > 0, place);
    seconds += e.seconds;
  }
  CHECK(seconds <= profile.seconds());
}

TEST_CASE("profile: backward kernels have the scopes of their forward ops") {
  const Tensor x = Tensor::ones({2, 2}).set_requires_grad();
  Profiler profile;
  profile.start("forward");
  {
    const Tape tape;
    Tensor y;
    {
      const ProfileScope outer("block");
      const ProfileScope inner("mlp");
      y = matmul(x, x);
    }
    const Tensor loss = sum(y);
    profile.phase("backward");
    const ProfileScope other("elsewhere");
    loss.backward();
  }
  profile.stop();
  auto places = by_place(profile);
  CHECK(places["forward;block;mlp;matmul"].calls == 1);
  CHECK(places["backward;block;mlp;matmul"].calls >= 2);
  CHECK(places["forward;sum"].calls == 1);
  CHECK(places.count("backward;elsewhere;matmul") == 0);
  // Another profiler runs the backward of what was recorded under the first, and after an error.
  {
    const Tape tape;
    Profiler first, second;
    Tensor y;
    first.start("forward");
    {
      const ProfileScope scope("kept");
      y = sum(matmul(x, x));
    }
    first.stop();
    second.start("backward");
    y.backward();
    second.stop();
    CHECK(by_place(second)["backward;kept;matmul"].calls >= 2);
  }
  // Without a running profiler a scope does nothing.
  const ProfileScope scope("unseen");
  CHECK(profiled("mul", [&] { mul(x.detach(), 2.0); }).calls == 0);  // not recorded: no op
}

TEST_CASE("profile: repeated elements count once, and operands in structs count") {
  const Tensor row = Tensor::ones({8}), out = Tensor::empty({4, 8});
  CHECK(profiled("copy", [&] { out.copy_(row.expand({4, 8})); }).bytes == 4 * (8 + 32));

  const Tensor x = Tensor::ones({4, 8}), w = Tensor::ones({8});
  const double norm = profiled("layer_norm_fwd", [&] { layer_norm(x, w, w); }).bytes;
  CHECK(norm >= 4 * (32 + 8 + 8 + 32));
  CHECK(norm <= 4 * (32 + 8 + 8 + 32 + 2 * 4));

  const Tensor q = Tensor::ones({2, 5, 3, 4});
  const KernelWork all = profiled("attention_fwd", [&] { attention(q, q, q); });
  CHECK(all.flops == 2.0 * 2 * 3 * (5 * 5) * (4 + 4));
  CHECK(all.bytes >= 4.0 * (4 * q.numel()));
  const KernelWork causal =
      profiled("attention_fwd", [&] { attention(q, q, q, {.causal = true, .window = 2}); });
  CHECK(causal.flops == 2.0 * 2 * 3 * (1 + 2 + 2 + 2 + 2) * (4 + 4));

  const Tensor p = Tensor::ones({100}).set_requires_grad();
  optim::AdamW optimizer(NamedTensors{{"p", p}});
  p.set_grad(Tensor::ones({100}));
  // Reads p, g, m, v and writes p, m, v.
  CHECK(profiled("adam_step", [&] { optimizer.step(); }).bytes >= 28 * 100);
}

TEST_CASE("profile: only the kernels of its thread, and one profiler a thread") {
  const Tensor x = Tensor::ones({4});
  Profiler profile, second;
  profile.start("here");
  std::thread([&] {
    mul(x, 2.0);
    second.start("there");
    mul(x, 2.0);
    second.stop();
  }).join();
  CHECK(error_of([&] { second.start("again"); }) ==
        "profiler: this thread must have no running profiler, has one");
  profile.stop();
  CHECK(profile.entries().empty());
  CHECK(second.entries().size() == 1);
  CHECK(error_of([&] { profile.stop(); }) == "profiler: must be running on this thread");
}

TEST_CASE("profile: a kernel that throws is not counted") {
  const Tensor x = Tensor::ones({4, 2});
  Profiler profile;
  profile.start("once");
  dispatch<refuses_ones, refuses_ones>(Tensor::zeros({1}));
  CHECK(error_of([&] { dispatch<refuses_ones, refuses_ones>(x); }) == "refused");
  dispatch<refuses_ones, refuses_ones>(Tensor::zeros({1}));
  profile.stop();
  CHECK(by_place(profile)["once;refuses_ones"].calls == 2);
}

TEST_CASE("profile: kernels that the meta device skips are counted, in no time") {
  const Tensor meta = Tensor::empty({8, 8}, DType::f32, kMeta), x = Tensor::ones({4, 4});
  Profiler profile;
  profile.start("once");
  matmul(meta, meta);
  profile.phase("then");
  mul(x, 2.0);
  profile.stop();
  const KernelWork skipped = by_place(profile)["once;gemm"];
  CHECK(skipped.calls == 1);
  CHECK(skipped.flops == 2 * 8 * 8 * 8);
  CHECK(skipped.bytes == 4 * 3 * 8 * 8);
  CHECK(skipped.seconds == 0);
  for (const Profiler::Entry& e : profile.entries())
    CHECK((e.phase == "once" || e.work.flops == 0));
  profile.start("thrown away");
  mul(x, 2.0);
  profile.discard();
  CHECK(profile.spans() == 1);
  CHECK(profile.entries().size() == 2);
}

TEST_CASE("profile: entries by operands, and operands that are updated") {
  Profiler profile(true);
  profile.start("once");
  for (const std::int64_t n : {4, 4, 6}) {
    const Tensor x = Tensor::ones({n, 8}), y = Tensor::ones({8, 2});
    gemm(x, y, Tensor::zeros({n, 2}), true);
    gemm(transposed(y), transposed(x), Tensor::empty({2, n}));
  }
  profile.stop();
  std::map<std::string, KernelWork> products;
  for (const Profiler::Entry& e : profile.entries())
    if (e.kernel == "gemm") products[e.operands] = e.work;
  CHECK(products.size() == 4);
  CHECK(products["f32 4x8, f32 8x2, f32 4x2"].calls == 2);
  CHECK(products["f32 4x8, f32 8x2, f32 4x2"].bytes == 2 * 4 * (32 + 16 + 2 * 8));
  CHECK(products["f32 2x8t, f32 8x6t, f32 2x6"].bytes == 4 * (16 + 48 + 12));
}

TEST_CASE("profile: casts before attention have no operations") {
  const Tensor q = Tensor::ones({1, 4, 2, 8}, DType::bf16);
  Profiler profile;
  profile.start("once");
  attention(q, q, q);
  profile.stop();
  for (const Profiler::Entry& e : profile.entries())
    CHECK((e.work.flops > 0) == (e.kernel == "attention_fwd"));
}

TEST_CASE("profile: a floor is the longer of its products and its bytes") {
  const DeviceRates rates{.product = 100, .copies = {{1000, 50}, {8000, 10}}};
  CHECK(rates.floor({2, 0, 400, 100}) == 4);
  CHECK(rates.floor({2, 0, 0, 100}) == 2);
  CHECK(rates.floor({1, 0, 0, 2000}) == 40);
  CHECK(rates.floor({1, 0, 0, 8000}) == 800);
  CHECK(rates.floor({1, 0, 0, 90000}) == 9000);
  const DeviceRates measured = measure_rates(kCpu, DType::f32);
  CHECK(measured.product > 1e6);
  for (std::size_t i = 1; i < measured.copies.size(); ++i)
    CHECK(measured.copies[i].rate <= measured.copies[i - 1].rate);
  CHECK(measure_rates(kMeta, DType::f32).copies.empty());
}

TEST_CASE("profile: the table has the longest phase and op first, in 80 columns") {
  const auto entry = [](const char* phase, const char* op, const char* kernel, KernelWork work) {
    return Profiler::Entry{phase, {}, op, kernel, work};
  };
  // Two spans of 5 s; 100 operations and 50 bytes a second.
  const std::string table = profile_table(
      {entry("forward", "short", "a", {2, 1, 0, 10}),
       entry("forward", "long", "b", {4, 2, 150, 20}), entry("forward", "long", "c", {2, 1, 0, 0}),
       entry("update", "", "alone", {2, 5, 0, 200}), entry("update", "rare", "d", {2, 0.01, 0, 0}),
       entry("a phase with a name that is longer than its column", "e", "e", {2, 0.5, 0, 0})},
      10, 2, {.product = 100, .copies = {{1, 50}}});
  CAPTURE(table);
  std::vector<std::string> lines;
  std::istringstream text(table);
  for (std::string line; std::getline(text, line);) {
    CHECK(line.size() <= 80);
    lines.push_back(line);
  }
  const char* const starts[] = {
      "   ",     "update",   "  alone",        "  others",
      "forward", "  long",   "  short",        "a phase with a name that i",
      "  e",     "all kern", "between kernels"};
  REQUIRE(lines.size() == std::size(starts));
  for (std::size_t i = 0; i < lines.size(); ++i)
    CHECK_MESSAGE(lines[i].starts_with(starts[i]), lines[i]);
  CHECK(lines[5] == "  long                          3 1500.00  30.0 %      0.0     0.0      50 %");
  CHECK(lines[10] == "between kernels                 0  245.00   4.9 %");
  CHECK(profile_table(Profiler(), {}).find("all kernels") != std::string::npos);
}

}  // namespace weft::profile_test
