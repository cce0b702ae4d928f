#pragma once
#include "weft/distributed/device_mesh.h"
#include "weft/distributed/layout.h"
#include "weft/distributed/pieces.h"

namespace weft::distributed {

/// What this rank adds to a checkpoint of a model whose state_dict() is `state`: ranks that hold
/// the same values take turns, and all ranks together write everything once.
Pieces model_pieces(const StateDict& state, const DeviceMesh& mesh, const Layout& layout);

/// The state of a model with the values that this rank holds, from files of any layout: what
/// load_state_dict() takes. Throws Error as PieceFiles::read_into().
StateDict read_model(const StateDict& state, const Layout& layout, const PieceFiles& files);

}  // namespace weft::distributed
