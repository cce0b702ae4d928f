// An MoE layer compared with an MLP whose products cost the same: the overhead of sorting, moving
// tokens and uneven groups. Forward and backward; the two alternate.
#include <algorithm>
#include <string>
#include <vector>

#include "weft/autograd/tape.h"
#include "weft/bench/harness.h"
#include "weft/core/random.h"
#include "weft/nn/attention.h"
#include "weft/nn/block.h"
#include "weft/nn/mlp.h"
#include "weft/nn/moe.h"

using namespace weft;

namespace {

struct Size {
  const char* name;
  std::int64_t dim, ffn, experts, topk, batch, tokens;
};
// Layers of 1/1000 the size of Mixtral's and DeepSeek-V2's: few wide experts, many narrow ones.
constexpr Size kSizes[] = {{"C256 F512 E8 k2", 256, 512, 8, 2, 8, 256},
                           {"C384 F768 E8 k2", 384, 768, 8, 2, 8, 256},
                           {"C384 F192 E32 k4", 384, 192, 32, 4, 8, 256},
                           {"C128 F256 E8 k2", 128, 256, 8, 2, 8, 256}};
constexpr int kRounds = 9;

struct Pair {
  std::vector<double> dense, sparse;

  double ratio(double (*of)(std::vector<double>)) const { return of(dense) / of(sparse); }
};

double least_of(std::vector<double> v) { return *std::min_element(v.begin(), v.end()); }

template <class Dense, class Sparse>
Pair in_turn(Dense dense, Sparse sparse) {
  Pair out;
  for (int i = 0; i < kRounds + 2; ++i) {
    const double start = bench::now();
    dense();
    const double middle = bench::now();
    sparse();
    const double end = bench::now();
    if (i < 2) continue;
    out.dense.push_back(middle - start);
    out.sparse.push_back(end - middle);
  }
  return out;
}

void report(bench::Report& out, const std::string& name, const Pair& p, std::int64_t tokens) {
  out.row(name + ", dense", static_cast<double>(tokens) / bench::median(p.dense), "tokens/s");
  out.row(name + ", experts", static_cast<double>(tokens) / bench::median(p.sparse), "tokens/s");
  out.row(name + ", experts / dense, median", p.ratio(bench::median), "");
  out.row(name + ", experts / dense, best", p.ratio(least_of), "");
}

void measure(bench::Report& out, const Size& s) {
  const nn::MlpOptions mlp{.activation = nn::Activation::swiglu, .bias = false};
  // Noise chooses the experts, so the load is even up to chance.
  const nn::MoeOptions moe{.experts = s.experts,
                           .router = {.route = {.topk = s.topk}, .force_balance = true},
                           .ffn = s.ffn};
  nn::Mlp dense(s.dim, s.topk * s.ffn, mlp);
  nn::MoE sparse(s.dim, moe);
  Tensor x = rand_normal({s.batch, s.tokens, s.dim});
  const Tensor dy = rand_normal(x.shape());
  x.set_requires_grad();
  const auto pass = [&](nn::Module& m, auto f) {
    Tape tape;
    f().backward(dy);
    m.zero_grad();
    x.set_grad({});
  };
  const std::int64_t tokens = s.batch * s.tokens;
  report(out, std::string(s.name) + ", layer",
         in_turn([&] { pass(dense, [&] { return dense(x); }); },
                 [&] { pass(sparse, [&] { return sparse(x).y; }); }),
         tokens);

  const std::int64_t heads = s.dim / 64;
  const auto attention = [&] { return nn::Attention(s.dim, heads, {.bias = false}); };
  nn::Block dense_block(nn::RMSNorm(s.dim), attention(), nn::Mlp(s.dim, s.topk * s.ffn, mlp));
  nn::Block sparse_block(nn::RMSNorm(s.dim), attention(), nn::MoE(s.dim, moe));
  const auto block = [&](nn::Block& b) { pass(b, [&] { return b(nn::Stream{x, {}, {}}).delta; }); };
  report(out, std::string(s.name) + ", block",
         in_turn([&] { block(dense_block); }, [&] { block(sparse_block); }), tokens);
}

}  // namespace

int main(int argc, char** argv) try {
  std::string only;
  bench::Report out(argc, argv, {{"--only", &only, "NAME"}});
  bool found = false;
  for (const Size& s : kSizes) {
    if (std::string(s.name).find(only) == std::string::npos) continue;
    found = true;
    measure(out, s);
  }
  check(found, "--only: must be a part of a name such as {}, got '{}'", kSizes[0].name, only);
  return out.finish();
} catch (const Error& e) {
  return bench::failed(argv[0], e);
}
