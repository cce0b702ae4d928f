#include "weft/nn/init.h"

#include <cmath>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/tape.h"
#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/core/profile.h"
#include "weft/core/random.h"
#include "weft/nn/walk.h"

namespace weft::nn {
namespace {

void fill_tables(Module& model) {
  detail::for_each_module(model, [](const std::string&, Module& m) { m.fill_tables(); });
}

void allocate_chosen(Module& model, Device device, const TensorFilter& only) {
  detail::for_each_distinct_tensor(model, [&](const std::string& name, const Slot& slot) {
    const Tensor& t = *slot.tensor;
    if (!t.is_meta() || (only && !only(t, slot.is_buffer))) return;
    const ProfileScope scope(name.c_str());
    const CategoryScope category(slot.is_buffer ? Category::other : Category::parameter);
    const Tensor fresh = Tensor::empty(t.shape(), t.dtype(), device);
    if (slot.is_buffer) fresh.zero_();
    detail::replace_storage(t, fresh);
  });
}

}  // namespace

Init Init::xavier_uniform(std::int64_t fan_in, std::int64_t fan_out, double gain) {
  check(fan_in + fan_out > 0, "xavier_uniform: fan_in + fan_out must be above 0, got {}",
        fan_in + fan_out);
  return uniform(gain * std::sqrt(6.0 / static_cast<double>(fan_in + fan_out)));
}

Init Init::kaiming_uniform(std::int64_t fan_in, double gain) {
  check(fan_in > 0, "kaiming_uniform: fan_in must be above 0, got {}", fan_in);
  return uniform(gain * std::sqrt(3.0 / static_cast<double>(fan_in)));
}

void Init::fill(const Tensor& t, const RandomKey& key) const {
  const NoGradGuard off;
  switch (kind) {
    case Kind::constant:
      t.fill_(a);
      break;
    case Kind::normal:
      normal_(t, key, a, b);
      break;
    case Kind::truncated_normal:
      truncated_normal_(t, key, a, b, a - 2 * b, a + 2 * b);
      break;
    case Kind::uniform:
      uniform_(t, key, -a, a);
      break;
    case Kind::log_uniform:
      uniform_(t, key, a, b);
      t.copy_(log(t));
      break;
  }
}

void init(Module& model, std::uint64_t seed, const ShardSpecs& parts, const TensorFilter& only) {
  assign_names(model);
  bool tables = !only;
  detail::for_each_distinct_tensor(model, [&](const std::string& name, const Slot& slot) {
    if (only && !only(*slot.tensor, slot.is_buffer)) return;
    tables = tables || slot.is_derived;
    if (slot.is_buffer) return;
    check(slot.init.has_value(),
          "init: visit() must give the rule of each parameter, v(name, tensor, Init), got none for "
          "{}",
          name);
    RandomKey key{seed, stream_of(name), 0};
    const auto part = parts.find(name);
    if (part == parts.end()) return slot.init->fill(*slot.tensor, key);
    check(shape_of(part->second) == slot.tensor->shape(),
          "init: {} must have the shape {} of its part of {}, got {}", name, shape_of(part->second),
          part->second.whole, slot.tensor->shape());
    for_each_run(part->second, [&](std::int64_t whole, std::int64_t own, std::int64_t count) {
      RandomKey of_run = key;
      of_run.first += static_cast<std::uint64_t>(whole);
      slot.init->fill(slot.tensor->detach().alias({count}, {1}, own), of_run);
    });
  });
  if (tables) fill_tables(model);
}

void materialise(Module& model, Device device, std::uint64_t seed, const ShardSpecs& parts,
                 const TensorFilter& only) {
  allocate_chosen(model, device, only);
  init(model, seed, parts, only);
}

void to_empty(Module& model, Device device) {
  allocate_chosen(model, device, {});
  assign_names(model);
  fill_tables(model);
}

}  // namespace weft::nn
