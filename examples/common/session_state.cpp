// A session's part of a checkpoint.
#include "weft/core/error.h"
#include "weft/examples/common/session.h"

namespace weft::train {
namespace {

using distributed::Layout;
using distributed::ParameterLayout;
using distributed::Piece;
using distributed::PieceFiles;
using distributed::Pieces;

// The layout of a parameter or of one of its states, "blocks.0.attn.qkv.weight.m"; null: whole.
const ParameterLayout* layout_of(const Layout& layout, const std::string& name) {
  const auto found = layout.find(name);
  if (found != layout.end()) return &found->second;
  const auto parameter = layout.find(name.substr(0, name.rfind('.')));
  return parameter != layout.end() ? &parameter->second : nullptr;
}

Piece piece_of(const Layout& layout, const std::string& name, const Shape& shape) {
  const ParameterLayout* l = layout_of(layout, name);
  return l && !l->part.cuts.empty() && shape == shape_of(l->part) ? Piece::of(l->part)
                                                                  : Piece::of(shape);
}

// Of ranks that hold the same values, which take turns, is it this one's turn to write number i?
bool writes(const Ranks& ranks, const ParameterLayout* l, std::int64_t i) {
  const distributed::DeviceMesh& mesh = ranks.mesh();
  const distributed::ProcessGroup& replicas = l && l->expert ? mesh.edp() : mesh.dp_cp();
  const distributed::ProcessGroup& cut = l && l->expert ? mesh.etp() : mesh.tp();
  if (!(l && l->tp_cut) && cut.rank() != 0) return false;
  return replicas.rank() == i % replicas.size();
}

Pieces pieces_of(const StateDict& state, const Layout& layout, const Ranks& ranks) {
  Pieces pieces;
  std::int64_t i = 0;
  for (const auto& [name, tensor] : state)
    if (writes(ranks, layout_of(layout, name), i++))
      pieces[name] = {tensor, piece_of(layout, name, tensor.shape())};
  return pieces;
}

// The dictionary `like` with the values of the files; of what only these have the names are kept,
// so that whoever loads it refuses them.
StateDict read(const StateDict& like, const Layout& layout, const PieceFiles& files) {
  StateDict out;
  const Tensor unread = Tensor::empty({}, DType::f32, kMeta);
  for (const std::string& name : files.names()) {
    const auto own = like.find(name);
    if (own == like.end()) {
      out[name] = unread;
      continue;
    }
    const Tensor values = Tensor::empty(own->second.shape(), files.dtype(name));
    files.read_into(name, piece_of(layout, name, own->second.shape()), values);
    out[name] = values;
  }
  return out;
}

}  // namespace

Pieces Session::model_pieces() {
  wait_for_parameters();
  return pieces_of(model_->state_dict(), layout_, *ranks_);
}

Pieces Session::optimizer_pieces() const {
  return sharded_ ? sharded_->state() : pieces_of(optimizer_->state_dict(), layout_, *ranks_);
}

void Session::load_weights(const PieceFiles& model) {
  model_->load_state_dict(read(model_->state_dict(), layout_, model));
}

void Session::load(const PieceFiles& model, const PieceFiles& optimizer) {
  load_weights(model);
  if (sharded_)
    sharded_->load_state(optimizer);
  else
    optimizer_->load_state_dict(read(optimizer_->state_dict(), layout_, optimizer));
}

}  // namespace weft::train
