#pragma once
#include <cstdint>
#include <map>
#include <stop_token>
#include <string>

#include "weft/core/tensor_source.h"
#include "weft/io/json.h"
#include "weft/io/safetensors.h"
#include "weft/nn/shard_spec.h"

namespace weft::distributed {

/// Where values belong in a whole tensor: the elements [begin, end) of a shard, in row-major order.
struct ShardSlice {
  nn::ShardSpec spec;
  std::int64_t begin = 0, end = 0;

  /// All of a shard.
  static ShardSlice of(const nn::ShardSpec& part);
  /// All of an unsharded tensor.
  static ShardSlice of(const Shape& whole) { return of(nn::ShardSpec{whole, {}}); }
  bool is_whole() const;
  bool operator==(const ShardSlice&) const = default;
};

struct SlicedTensor {
  Tensor values;  ///< of the shard's shape, or (end - begin) for a part of it
  ShardSlice slice;
};
using SlicedTensors = std::map<std::string, SlicedTensor>;

/// The same before the values are read.
struct SliceSource {
  TensorSource values;
  ShardSlice slice;
};
using SliceSources = std::map<std::string, SliceSource>;
SliceSources sources_of(const SlicedTensors& slices);

/// The metadata of a file say under this key which of its tensors are slices: an object with a
/// to_json() by name.
inline constexpr const char* kSlicesKey = "pieces";
io::Json to_json(const ShardSlice& slice);
/// Throws Error (Fault::system) that begins with `where` unless it is a slice of a tensor.
ShardSlice slice_from_json(const io::Json& json, const std::string& where);

/// Writes the tensors of one rank as .safetensors, reading one at a time. Unsharded tensors are
/// stored as usual; for shards the metadata key "pieces" says where they belong. Throws Error when
/// values and slice differ in their number of elements, when writing fails, and when a stop is
/// requested.
io::FileSummary save_slices(const std::string& path, const SliceSources& slices,
                            const io::Metadata& metadata = {}, const std::stop_token& stop = {});
io::FileSummary save_slices(const std::string& path, const SlicedTensors& slices,
                            const io::Metadata& metadata = {});

}  // namespace weft::distributed
