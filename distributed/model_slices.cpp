#include "weft/distributed/model_slices.h"

#include "weft/core/error.h"
#include "weft/distributed/unit_cut.h"

namespace weft::distributed {
namespace {

// The layout of a parameter or of one of its states, "blocks.0.attn.qkv.weight.m"; null:
// replicated.
const ParameterLayout* layout_of(const Layout& layout, const std::string& name) {
  const auto found = layout.find(name);
  if (found != layout.end()) return &found->second;
  const auto parameter = layout.find(name.substr(0, name.rfind('.')));
  return parameter != layout.end() ? &parameter->second : nullptr;
}

ShardSlice slice_of(const Layout& layout, const std::string& name, const Shape& shape) {
  const ParameterLayout* l = layout_of(layout, name);
  return l && !l->spec.cuts.empty() && shape == shape_of(l->spec) ? ShardSlice::of(l->spec)
                                                                  : ShardSlice::of(shape);
}

// Whether this rank writes entry i: ranks that hold the same values take turns.
bool writes(const DeviceMesh& mesh, const ParameterLayout* l, std::int64_t i) {
  const ProcessGroup& replicas = l && l->expert ? mesh.edp() : mesh.dp_cp();
  const ProcessGroup& cut = l && l->expert ? mesh.etp() : mesh.tp();
  if (!(l && l->tp_cut) && cut.rank() != 0) return false;
  if (!mesh.is_first_replica(l ? l->cut_over : std::vector<std::string>{})) return false;
  return replicas.rank() == i % replicas.size();
}

}  // namespace

SlicedTensors model_slices(const StateDict& state, const DeviceMesh& mesh, const Layout& layout) {
  SlicedTensors slices;
  std::int64_t i = 0;
  for (const auto& [name, tensor] : state)
    if (writes(mesh, layout_of(layout, name), i++))
      slices[name] = {tensor, slice_of(layout, name, tensor.shape())};
  return slices;
}

SliceSources slice_sources(const TensorSources& state, const DeviceMesh& mesh,
                           const Layout& layout) {
  SliceSources slices;
  std::int64_t i = 0;
  for (const auto& [name, source] : state)
    if (writes(mesh, layout_of(layout, name), i++))
      slices[name] = {source, slice_of(layout, name, source.shape)};
  return slices;
}

StateDict read_model(const StateDict& state, const Layout& layout, const ShardFiles& files) {
  return files.like(state, [&](const std::string& name, const Shape& shape) {
    return slice_of(layout, name, shape);
  });
}

StateDict cut_model(const StateDict& state, const Layout& layout, const StateDict& whole) {
  StateDict out = whole;
  for (auto& [name, tensor] : out) {
    const auto own = state.find(name);
    if (own == state.end()) continue;
    const nn::ShardSpec part = slice_of(layout, name, own->second.shape()).spec;
    if (part.cuts.empty()) continue;
    check(tensor.shape() == part.whole, "cut_model: {} must have shape {}, got {}", name,
          part.whole, tensor.shape());
    tensor = part_of(tensor.contiguous(), part);
  }
  return out;
}

}  // namespace weft::distributed
