#pragma once
// A GPT's training step in a layout, compared with one rank.
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "weft/core/random.h"
#include "weft/tests/examples/gpt_step.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"

namespace weft::examples::session_test {

using distributed::World;

constexpr std::int64_t kRows = 16, kTokens = 8;

// Row i of the global batch of every step is the same for all layouts.
inline data::Batch batch_of(std::int64_t step, std::int64_t first, std::int64_t rows,
                            std::int64_t vocab) {
  const Tensor text = Tensor::empty({kRows, kTokens + 1});
  uniform_(text, {17, static_cast<std::uint64_t>(step), 0}, 0, static_cast<double>(vocab));
  const Tensor ids = text.to(DType::i32).narrow(0, first, rows);
  return {ids.narrow(1, 0, kTokens).clone(), ids.narrow(1, 1, kTokens).clone()};
}

struct Layout {
  const char* name;
  std::int64_t ranks, tp = 1, ep = 1, etp = 0;
  bool sp = false;
  std::int64_t dp_replicate = 1;
};

struct Model {
  const char* name;
  bool experts;
  nn::Arch arch;
  bool tie;
  Aux aux = Aux::none;
  double capacity = 0;
  nn::Recompute recompute = nn::Recompute::none;
  const char* pattern = "";
  nn::AttentionKind attention = nn::AttentionKind::mha;
};
constexpr nn::Arch kGpt2 = nn::Arch::gpt2, kLlama = nn::Arch::llama;

// A vocabulary of 37 is not divisible by any number of ranks.
inline GptOptions options_of(const Model& m, DType dtype) {
  GptOptions o;
  o.model.arch = m.arch;
  o.model.tie = m.tie;
  o.model.layers = 2;
  o.model.heads = 4;
  o.model.dim = 16;
  o.model.ffn = 24;
  o.model.seq = kTokens;
  o.model.vocab = 37;
  o.model.mtp.depths = m.experts ? 1 : 0;
  o.model.moe.experts = m.experts ? 4 : 0;
  o.model.moe.ffn = 8;
  o.model.moe.shared_ffn = 8;
  o.model.moe.router.route.score = m.experts ? RouterScore::sigmoid : RouterScore::softmax;
  o.balance.aux = m.aux;
  o.model.moe.router.capacity_factor = m.capacity;
  o.model.recompute = m.recompute;
  o.model.pattern = m.pattern;
  o.model.attention = m.attention;
  o.model.moe.router.z_loss = m.experts ? 1e-3 : 0;
  o.batch = kRows;
  o.optimizer.schedule = optim::Schedule::Kind::constant;
  o.optimizer.warmup = 0;
  o.machine.dtype = dtype;
  return o;
}

// An SGD step subtracts the gradient times the rate. A high rate makes this difference large
// relative to the rounding of the weights.
inline GptOptions plain_sgd(GptOptions o, double lr) {
  o.optimizer.kind = optim::Kind::sgd;
  o.optimizer.lr = o.optimizer.min_lr = lr;
  o.optimizer.beta1 = o.optimizer.weight_decay = o.optimizer.clip = 0;
  return o;
}

inline GptOptions laid_out(GptOptions o, const Layout& l, bool zero, std::int64_t accumulation) {
  o.parallel.ranks = l.ranks;
  o.parallel.tp = l.tp;
  o.parallel.ep = l.ep;
  o.parallel.etp = l.etp;
  o.parallel.sp = l.sp;
  o.parallel.zero = zero;
  o.parallel.dp_replicate = l.dp_replicate;
  o.micro_batch = kRows / (l.ranks / l.tp) / accumulation;
  return o;
}

struct Result {
  std::vector<double> losses, norms;
  StateDict first, last;  ///< weights before and after; on several ranks, what one rank would write
};

inline StateDict values_of(const distributed::SlicedTensors& slices) {
  StateDict out;
  for (const auto& [name, p] : slices) out[name] = p.values.clone();
  return out;
}

inline Result run(const GptOptions& o, int steps, const train::Ranks& ranks,
                  distributed::SlicedTensors* slices = nullptr) {
  GptStep gpt(o, ranks);
  Result r;
  r.first = values_of(gpt.step.model_slices());
  for (int step = 1; step <= steps; ++step) {
    const train::StepResult s =
        gpt.step(step, batch_of(step, ranks.first_row(), ranks.rows(), o.model.vocab));
    r.losses.push_back(s.loss());
    if (s.find("mtp_1_loss")) r.losses.push_back(s.at("mtp_1_loss").value());
    r.norms.push_back(s.grad_norm());
  }
  r.last = values_of(gpt.step.model_slices());
  if (slices) *slices = gpt.step.model_slices();
  return r;
}

inline Result run_alone(const GptOptions& o, int steps) {
  return run(o, steps, train::Ranks::alone(o));
}

// A rank's piece of a whole tensor.
inline Tensor cut(const Tensor& whole, const distributed::ShardSlice& piece, const Shape& shape) {
  const Tensor out = Tensor::empty({shape_of(piece.spec).numel()}, whole.dtype());
  const Tensor flat = whole.flatten();
  nn::for_each_run(piece.spec, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    out.narrow(0, to, count).copy_(flat.narrow(0, from, count));
  });
  return out.narrow(0, piece.begin, piece.end - piece.begin).view(shape);
}

inline double squares(const Tensor& t) {
  double sum = 0;
  for (const double v : test::values(t)) sum += v * v;
  return sum;
}

struct Tolerance {
  double losses;       ///< of losses and norms, relative
  double change;       ///< of each parameter's change, relative to the change
  double weights = 1;  ///< of each parameter, relative
};

// "" or the first difference beyond the tolerance. Each rank checks its own slices.
inline std::string difference(const Result& got, const Result& want,
                              const distributed::SlicedTensors& slices,
                              const Tolerance& tolerance) {
  const auto apart = [](double a, double b) { return std::abs(a - b) / std::abs(b); };
  for (std::size_t i = 0; i < want.losses.size(); ++i)
    if (!(apart(got.losses.at(i), want.losses[i]) <= tolerance.losses))
      return message("loss {}: {}, not {}", i, got.losses[i], want.losses[i]);
  for (std::size_t i = 0; i < want.norms.size(); ++i)
    if (!(apart(got.norms.at(i), want.norms[i]) <= tolerance.losses))
      return message("norm {}: {}, not {}", i, got.norms[i], want.norms[i]);
  for (const auto& [name, p] : slices) {
    if (!is_compute(p.values.dtype())) continue;
    const Shape& shape = p.values.shape();
    const Tensor &first = want.first.at(name), &last = want.last.at(name);
    if (const std::string text =
            test::different_bits(got.first.at(name), cut(first, p.slice, shape));
        !text.empty())
      return message("{} starts otherwise: {}", name, text);
    // Relative to the whole parameter, because a shard may hardly change.
    const double d = std::sqrt(squares(sub(got.last.at(name), cut(last, p.slice, shape))));
    const double change = std::sqrt(squares(sub(first, last)));
    if (!(d <= tolerance.change * change && d <= tolerance.weights * std::sqrt(squares(last))))
      return message("{}: {} apart, after a change of {}", name, d, change);
  }
  return "";
}

// Runs a case on its ranks and compares.
inline void on_ranks(const Model& m, const Layout& l, const GptOptions& own, const Result& want,
                     const Tolerance& tolerance) {
  test::distributed_test(static_cast<int>(l.ranks), [&](World& world) {
    CAPTURE(std::string(m.name));
    CAPTURE(std::string(l.name));
    CAPTURE(own.parallel.zero);
    CAPTURE(own.micro_batch);
    const train::Ranks ranks(world, own);
    distributed::SlicedTensors slices;
    const Result got = run(own, static_cast<int>(want.norms.size()), ranks, &slices);
    CHECK(difference(got, want, slices, tolerance) == "");
  });
}

}  // namespace weft::examples::session_test
