#include "weft/autograd/fp8_linear.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/distributed/comm_ops.h"
#include "weft/distributed/fp8_overlap.h"
#include "weft/distributed/parallelizer.h"
#include "weft/distributed/vocab.h"

// The kinds of Placement: what each changes in a layer's parameters and in its Shard.
namespace weft::distributed {
namespace {

void check_width(const std::string& name, std::int64_t got, const Placement& p) {
  check(got == width_of(p.units), "parallelize: {} must have {} features by its rule, got {}", name,
        width_of(p.units), got);
}

}  // namespace

std::function<Tensor(const Tensor&)> Parallelizer::entrance() const {
  if (plan_.sequence) return [g = &tp_](const Tensor& x) { return gather_rows(x, *g); };
  return [g = &tp_](const Tensor& x) { return copy_to_group(x, *g); };
}

std::function<Tensor(Tensor)> Parallelizer::exit(bool scatters) const {
  if (scatters) return [g = &tp_](Tensor y) { return reduce_scatter_rows(y, *g); };
  return [g = &tp_](Tensor y) { return reduce_from_group(std::move(y), *g); };
}

Parallelizer::ShareRows Parallelizer::sharing(const std::vector<SharedRows>& rows,
                                              std::int64_t all) const {
  return [g = &tp_, list = std::make_shared<const std::vector<SharedRows>>(rows),
          all](const Tensor& t) { return t.defined() ? share_rows(t, *g, list, all) : t; };
}

bool Parallelizer::gathers_again(const std::string& name) const {
  return gathers_again_ && plan_.sequence && gathers_again_->matches(name);
}

UnitCut::Ranges Parallelizer::vocabulary(const Placement& p) const {
  const VocabRange r = vocab_range(p.units[0].count, tp_.rank(), tp_.size());
  return {{r.first, r.first + r.count}};
}

void Parallelizer::column(const std::string& name, const Placement& p, nn::Shard& s) {
  const Tensor weight = own(name, "weight");
  check_width(name, weight.dim(0), p);
  const UnitCut cut = cut_units(name, p.units, tp_);
  for (const Tensor& t : {weight, own(name, "bias")})
    if (t.defined())
      if (ParameterLayout* layout = keep(t, 0, cut.ranges); layout && !cut.shared.empty()) {
        layout->shared_from = cut.shared_from;
        layout->shared_by = cut.sharers;
      }
  const bool overlaps = p.communicates && plan_.overlap != Overlap::none;
  const std::function<Tensor(const Tensor&)> enter = p.communicates ? entrance() : nullptr;
  if (!overlaps) s.enter = enter;
  ShareRows share;
  if (!cut.shared.empty()) share = sharing(cut.shared, cut.all_shared);
  if (share || overlaps)
    s.product = [g = &tp_, share, overlaps, gathers = plan_.sequence](
                    const Tensor& x, const Tensor& w, const Tensor& bias) {
      const Tensor b = share ? share(bias) : bias, used = share ? share(w) : w;
      if (!overlaps) return linear(x, used, b);
      return gathers ? gather_linear(x, used, b, *g) : copy_linear(x, used, b, *g);
    };
  const bool gathers = p.communicates && plan_.sequence;
  if (!gathers && !share && !overlaps) return;
  const Fp8Rows how{plan_.overlap, gathers_again(name)};
  s.fp8_product = [g = &tp_, share, how, gathers, enter](
                      const Tensor& x, const Tensor& w, const Tensor& bias,
                      const fp8::Recipe& recipe, const fp8::LayerState& state) {
    const auto multiply = [&](const Tensor& used, const Tensor& b, const fp8::LayerState& own) {
      if (gathers) return fp8_gather_linear(x, used, b, recipe, &own, *g, how);
      return fp8_linear(enter ? enter(x) : x, used, b, recipe, &own);
    };
    if (!share) return multiply(w, bias, state);
    // The summed rows are other memory in every pass: their copy is not worth keeping.
    const fp8::LayerState once{.weight = {}, .delayed = state.delayed};
    const Tensor b = share(bias);
    return multiply(share(w), b, state.weight.is_given() ? state : once);
  };
}

void Parallelizer::row(const std::string& name, const Placement& p, nn::Shard& s) {
  const Tensor weight = own(name, "weight"), bias = own(name, "bias");
  check_width(name, weight.dim(1), p);
  keep(weight, 1, cut_units(name, p.units, tp_).ranges);
  if (bias.defined()) layout_of(bias).tp_partial = plan_.sequence && tp_.size() > 1;
  if (plan_.sequence)
    s.fp8_product = [g = &tp_, form = plan_.overlap](const Tensor& x, const Tensor& w,
                                                     const Tensor& b, const fp8::Recipe& recipe,
                                                     const fp8::LayerState& state) {
      const Tensor y = fp8_linear_scatter(x, w, recipe, &state, *g, form);
      return b.defined() ? add(y, b) : y;
    };
  if (plan_.overlap == Overlap::none || !plan_.sequence) {
    s.leave = exit(plan_.sequence);
    return;
  }
  s.product = [g = &tp_, form = plan_.overlap](const Tensor& x, const Tensor& w, const Tensor& b) {
    const Tensor y = linear_scatter(x, w, *g, form);
    return b.defined() ? add(y, b) : y;
  };
}

void Parallelizer::table(const std::string& name, const Placement& p, nn::Shard& s) {
  keep(own(name, "weight"), 0, vocabulary(p));
  s.lookup = [g = &tp_, vocab = p.units[0].count](const Tensor& ids, const Tensor& weight) {
    return vocab_embedding(weight, ids, vocab, *g);
  };
  s.leave = exit(p.communicates);
}

void Parallelizer::head(const std::string& name, const Placement& p, nn::Shard& s) {
  check(!own(name, "bias").defined(),
        "parallelize: a head that is cut over ranks must have no bias");
  keep(own(name, "weight"), 0, vocabulary(p));
  Rows columns;
  for (int r = 0; r < tp_.size(); ++r)
    columns.push_back(vocab_range(p.units[0].count, r, tp_.size()).count);
  s.enter = entrance();
  s.leave = [g = &tp_, columns](Tensor y) { return gather_columns(y, *g, columns); };
}

void Parallelizer::loss(const std::string&, const Placement& p, nn::Shard& s) {
  s.head_loss = [enter = entrance(), g = &tp_, vocab = p.units[0].count](
                    const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                    const CrossEntropyOptions& options) {
    Shape shape = targets.shape();
    shape.push_back(hidden.dim(-1));
    return vocab_cross_entropy(reshape(enter(hidden), shape), weight, targets, vocab, *g, options);
  };
}

void Parallelizer::heads(const std::string& name, const Placement& p, nn::Shard& s) {
  const UnitCut cut = cut_units(name, p.units, tp_);
  s.heads = {cut.ranges[0].first, p.units[0].count};
  if (p.communicates) s.enter = entrance();
}

void Parallelizer::tokens(const std::string&, const Placement& p, nn::Shard& s) {
  s.tokens = {tp_.rank(), tp_.size()};
  if (p.communicates) s.enter = [g = &tp_](const Tensor& x) { return scatter_rows(x, *g); };
}

void Parallelizer::own_parameters(const std::string& name, const Placement& p, nn::Shard&) {
  for (const auto& [parameter, units] : p.parameters) {
    const Tensor t = own(name, parameter.c_str());
    check(t.defined(), "parallelize: {} has no parameter {}", name, parameter);
    check(t.dim(0) == width_of(units), "parallelize: {}.{} must have {} rows by its rule, got {}",
          name, parameter, width_of(units), t.dim(0));
    keep(t, 0, cut_units(name, units, tp_).ranges);
  }
}

void Parallelizer::norm(const std::string& name, const Placement& p, nn::Shard& s) {
  const Tensor weight = own(name, "weight");
  check_width(name, weight.dim(0), p);
  keep(weight, 0, cut_units(name, p.units, tp_).ranges);
  s.sum_row = [g = &tp_](Tensor part) {
    return copy_to_group(reduce_from_group(std::move(part), *g), *g);
  };
  s.row_ranks = tp_.size();
}

}  // namespace weft::distributed
