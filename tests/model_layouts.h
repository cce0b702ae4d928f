#pragma once
#include <cmath>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/distributed/parallelize.h"
#include "weft/nn/gpt.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"

// Compares a GPT on one rank with its sharded layouts on the same numbers.
namespace weft::test {

/// Fills norms with about 1 and everything else with values large enough that all parameters
/// matter. A shard gets the same values as the whole tensor.
inline void fill_parameters(nn::Gpt& model, const nn::ShardSpecs& parts) {
  for (const NamedTensor& p : model.named_parameters()) {
    const auto found = parts.find(p.name);
    const nn::ShardSpec part =
        found == parts.end() ? nn::ShardSpec{p.tensor.shape(), {}} : found->second;
    const bool norm = p.name.find("norm") != std::string::npos && p.name.ends_with("weight");
    const double mean = norm ? 1 : 0, std = part.whole.size() == 2 ? 0.25 : 0.1;
    nn::for_each_run(part, [&](std::int64_t whole, std::int64_t own, std::int64_t count) {
      normal_(p.tensor.detach().alias({count}, {1}, own),
              {7, stream_of(p.name), static_cast<std::uint64_t>(whole)}, mean, std);
    });
  }
}

/// Loss and gradients by name, in f64.
struct Pass {
  double loss = 0, aux = 0;  ///< the balance loss of the experts is part of the loss
  std::vector<double> mtp, hits;
  std::map<std::string, Tensor> gradients;

  double norm() const {
    double squares = 0;
    for (const auto& [name, g] : gradients) squares += sum(mul(g, g)).item();
    return std::sqrt(squares);
  }
};

struct Batch {
  Tensor ids, targets;
};

inline Batch some_batch(std::int64_t sequences, std::int64_t tokens, std::int64_t vocab) {
  const Tensor text = Tensor(uniform_(Tensor::empty({sequences, tokens + 1}, DType::f64), {3, 9, 0},
                                      0, static_cast<double>(vocab)))
                          .to(DType::i32);
  Batch b{text.narrow(1, 0, tokens).contiguous(), text.narrow(1, 1, tokens).clone()};
  b.targets.narrow(1, 0, 1).fill_(-100);
  return b;
}

/// One forward and backward pass of the mean loss. A null `layout` means one rank.
inline Pass pass_of(nn::Gpt& model, const Batch& batch) {
  const RandomScope random({.seed = 5, .step = 3, .micro_batch = 1, .first_global_row = 2});
  Pass out;
  Tape tape;
  const nn::GptLosses l = model.losses(batch.ids, batch.targets);
  const Tensor loss = mul(l.total(), 1.0 / l.main.count.item());
  loss.backward();
  out.loss = loss.item();
  if (l.aux.defined()) out.aux = l.aux.item();
  for (int d = 0; d < l.mtp.size(); ++d) {
    out.mtp.push_back(l.mtp[d].item());
    out.hits.push_back(l.mtp_hits[d].item());
  }
  for (const NamedTensor& p : model.named_parameters())
    out.gradients[p.name] = p.tensor.grad().defined() ? p.tensor.grad() : zeros_like(p.tensor);
  model.zero_grad();
  return out;
}

/// Gathers the whole gradient from the shards of the tp ranks.
inline Tensor whole_of(const Tensor& part, const distributed::ParameterLayout& layout,
                       distributed::ProcessGroup& tp) {
  const Tensor own = part.to(DType::f64).contiguous();
  if (layout.tp_partial) {
    const Tensor sum = own.clone();
    tp.all_reduce(sum).wait();
    return sum;
  }
  if (!layout.tp_cut) return own;
  const Tensor sum = Tensor::zeros(layout.spec.whole, DType::f64), times = zeros_like(sum);
  nn::for_each_run(layout.spec, [&](std::int64_t whole, std::int64_t at, std::int64_t count) {
    sum.alias({count}, {1}, whole).copy_(own.alias({count}, {1}, at));
    times.alias({count}, {1}, whole).fill_(1);
  });
  tp.all_reduce(sum).wait();
  tp.all_reduce(times).wait();
  return div(sum, times);
}

inline nn::Gpt make_whole(const nn::GptConfig& config, DType dtype) {
  const nn::DeviceScope in(kCpu, dtype);
  nn::Gpt model(config);
  nn::init(model, 1);
  fill_parameters(model, {});
  return model;
}

struct Parallel {
  nn::Gpt model;
  distributed::Layout layout;
};

inline Parallel make_parallel(const nn::GptConfig& config, DType dtype,
                              distributed::ProcessGroup& tp,
                              const distributed::GptPlanOptions& options) {
  const nn::DeviceScope in(kMeta, dtype);
  Parallel out{nn::Gpt(config), {}};
  out.layout = distributed::parallelize(out.model, tp, distributed::gpt_plan(config, options));
  nn::materialise(out.model, kCpu, 1, distributed::shard_specs(out.layout));
  fill_parameters(out.model, distributed::shard_specs(out.layout));
  return out;
}

inline Pass gathered(const Pass& of_rank, const distributed::Layout& layout,
                     distributed::ProcessGroup& tp) {
  Pass out = of_rank;
  for (auto& [name, g] : out.gradients) g = whole_of(g, layout.at(name), tp);
  return out;
}

/// "" when loss, gradient norm and every gradient agree in relative norm.
inline std::string difference(const Pass& got, const Pass& want, double tol) {
  const auto apart = [tol](double a, double b) { return !(std::abs(a - b) <= tol * std::abs(b)); };
  if (apart(got.loss, want.loss)) return message("loss {}, not {}", got.loss, want.loss);
  for (std::size_t d = 0; d < want.mtp.size(); ++d)
    if (apart(got.mtp[d], want.mtp[d]))
      return message("depth {}: {}, not {}", d + 1, got.mtp[d], want.mtp[d]);
  if (got.hits != want.hits) return "other hits";
  if (apart(got.norm(), want.norm())) return message("norm {}, not {}", got.norm(), want.norm());
  if (got.gradients.size() != want.gradients.size()) return "other parameters";
  for (const auto& [name, w] : want.gradients) {
    const Tensor& g = got.gradients.at(name);
    if (g.shape() != w.shape()) return message("{}: {}, not {}", name, g.shape(), w.shape());
    const Tensor apart_by = sub(g.to(DType::f64), w.to(DType::f64));
    const double off = std::sqrt(sum(mul(apart_by, apart_by)).item());
    const double size = std::sqrt(sum(mul(w.to(DType::f64), w.to(DType::f64))).item());
    if (!(off <= tol * size)) return message("{}: off by {} of {}", name, off, size);
  }
  return "";
}

}  // namespace weft::test
