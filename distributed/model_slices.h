#pragma once
#include "weft/distributed/device_mesh.h"
#include "weft/distributed/layout.h"
#include "weft/distributed/shard_files.h"

namespace weft::distributed {

/// This rank's part of a checkpoint of a model with this state_dict(). Replicas take turns, so that
/// all ranks together write every value once.
SlicedTensors model_slices(const StateDict& state, const DeviceMesh& mesh, const Layout& layout);
/// The same of tensors that are not read yet, such as an optimizer's state_sources().
SliceSources slice_sources(const TensorSources& state, const DeviceMesh& mesh,
                           const Layout& layout);

/// Reads the values that this rank holds from files of any layout, as input for load_state_dict().
/// Throws Error as ShardFiles::read_into().
StateDict read_model(const StateDict& state, const Layout& layout, const ShardFiles& files);
/// The same from whole tensors in memory.
/// Throws Error when one that is cut has another shape than the layout says.
StateDict cut_model(const StateDict& state, const Layout& layout, const StateDict& whole);

}  // namespace weft::distributed
