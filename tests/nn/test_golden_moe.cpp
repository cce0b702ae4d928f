// X4: fifty steps of a tiny model with everything that this library adds to a GPT, compared with
// the losses at the time the file was written: latent attention, one dense layer and three MoE
// layers, grouped sigmoid scores, expert bias and balance loss, a shared expert, one MTP depth.
//
// In f64 every product is in-tree, and differences between compilers and math libraries are far
// below the fifth decimal: the numbers are the same everywhere. In f32 oneDNN may compute
// products, and its summation order depends on its version and the instruction set. A
// platform is identified by the bits of some of these products (all other f32 kernels give the same
// bits everywhere): on a known platform the losses must be equal, elsewhere within 5 %.
//
// After a change that is meant to change the numbers:
//   test_golden_moe --no-skip --test-case="*writes the file*"
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "weft/autograd/matmul.h"
#include "weft/autograd/reduce.h"
#include "weft/core/parallel.h"
#include "weft/io/file.h"
#include "weft/io/json.h"
#include "weft/nn/gpt.h"
#include "weft/nn/router_step.h"
#include "weft/optim/adamw.h"
#include "weft/optim/clip.h"
#include "weft/tests/support.h"

namespace weft::golden_moe_test {
using io::Json;

namespace {

constexpr const char* kFile = WEFT_FIXTURES "/golden_moe.json";
constexpr std::int64_t kVocab = 48, kSeq = 16, kBatch = 4;
constexpr int kSteps = 50;

nn::GptConfig config() {
  nn::GptConfig c = {.arch = nn::Arch::llama,
                     .layers = 4,
                     .heads = 4,
                     .dim = 64,
                     .ffn = 96,
                     .seq = kSeq,
                     .vocab = kVocab,
                     .attention = nn::AttentionKind::mla,
                     .mla = {.q_lora = 48, .kv_lora = 32},
                     .mtp = {.depths = 1, .weight = 0.1},
                     .moe_layers = {0, 1, 1, 1}};
  c.moe = {.experts = 8, .ffn = 32, .shared_ffn = 32};
  c.moe.router.route = {
      .topk = 2, .score = RouterScore::sigmoid, .scaling = 2, .groups = 4, .group_topk = 2};
  c.moe.router.expert_bias = true;
  c.moe.router.balance = {{nn::Balance::sequence, 1e-4}};
  return c;
}

// Token sequences that mostly follow a rule and sometimes restart: (kBatch, kSeq + 1).
Tensor language(std::uint64_t step) {
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < kBatch * (kSeq + 1); ++i) {
    const std::uint32_t bits = random_bits({step, 3, 0}, static_cast<std::uint64_t>(i));
    const bool anew = i % (kSeq + 1) == 0 || bits % 8 == 0;
    out.push_back(anew ? static_cast<std::int32_t>(bits / 8 % kVocab)
                       : (5 * out.back() + 3) % static_cast<std::int32_t>(kVocab));
  }
  return Tensor::from<std::int32_t>(out, {kBatch, kSeq + 1});
}

double rounded(double x) { return std::round(x * 1e5) / 1e5; }

// {"loss": [...], "mtp_1_loss": [...], "load_max_over_mean": [...]}, one number per step.
Json train(DType dtype) {
  nn::Gpt model(config());
  model.to(dtype);
  nn::init(model, 1);
  optim::AdamW opt(model.named_parameters(), {.lr = 3e-3});
  nn::RouterStep routers(model);
  Json loss, mtp, load;
  for (std::uint64_t step = 1; step <= kSteps; ++step) {
    const RandomScope random({.seed = 1, .step = step});
    const Tensor text = language(step);
    Tape tape;
    const nn::GptLosses l =
        model.losses(text.narrow(1, 0, kSeq).contiguous(), text.narrow(1, 1, kSeq).contiguous());
    const double count = static_cast<double>(l.main.count.item_int());
    loss.push_back(rounded(l.main.loss.item() / count));
    mtp.push_back(rounded(l.mtp[0].item() / static_cast<double>(l.mtp_count[0].item_int())));
    l.total().backward(Tensor::full({}, 1 / count, l.main.loss.dtype()));
    opt.step(optim::measure_clip(opt.parameters(), 1));
    opt.zero_grad();
    load.push_back(rounded(weft::max(routers.finish(1e-3)).item()));
  }
  Json out;
  return out.set("loss", loss).set("mtp_1_loss", mtp).set("load_max_over_mean", load);
}

// A checksum of the bits of products like those in a step.
std::int64_t platform() {
  std::uint32_t sum = 0;
  for (const std::int64_t k : {32, 64, 96}) {
    const Tensor a = test::random({64, k}, 1, DType::f32), b = test::random({64, k}, 2, DType::f32);
    for (const Tensor& y : {matmul(a, b.t()), matmul(a.t(), b)}) {
      const Tensor bits = y.contiguous();
      const auto* p = bits.data<float>();
      for (std::int64_t i = 0; i < bits.numel(); ++i)
        sum = sum * 31 + std::bit_cast<std::uint32_t>(p[i]);
    }
  }
  return sum;
}

// The first number in `got` that differs by more than `tol`, or "".
std::string apart(const Json& got, const Json& want, double tol) {
  for (const std::string name : {"loss", "mtp_1_loss", "load_max_over_mean"}) {
    if (tol > 0 && name.starts_with("load")) continue;  // one more token changes the load by 6 %
    const auto &a = got.at(name).items(), &b = want.at(name).items();
    if (a.size() != b.size()) return message("{}: {} steps, not {}", name, a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double x = a[i].as_double(), y = b[i].as_double();
      if (!(std::abs(x - y) <= tol * y))
        return message("{} of step {}: {} where {} was expected", name, i + 1, x, y);
    }
  }
  return "";
}

}  // namespace

TEST_CASE(
    "X4: a tiny model with experts, latent attention and MTP reproduces its recorded losses") {
  const test::RestoreThreads restore;
  set_deterministic(true);  // sums do not depend on the number of threads
  const Json want = Json::parse(io::read_file(kFile), kFile);
  CHECK(apart(train(DType::f64), want.at("f64"), 0) == "");
  const bool same = want.at("platform").as_int() == platform();
  CAPTURE(same);
  CHECK(apart(train(DType::f32), want.at("f32"), same ? 0 : 0.05) == "");
  // It learns: in 7 of 8 cases a token follows from the previous one.
  const auto& loss = want.at("f64").at("loss").items();
  CHECK(loss.front().as_double() > 3.8);
  CHECK(loss.back().as_double() < 2);
}

TEST_CASE("X4: writes the file" * doctest::skip()) {
  const test::RestoreThreads restore;
  set_deterministic(true);
  Json out;
  out.set("platform", platform());
  out.set("f64", train(DType::f64)).set("f32", train(DType::f32));
  io::write_file(kFile, out.dump() + "\n");
}

}  // namespace weft::golden_moe_test
