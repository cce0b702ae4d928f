#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/tensor.h"
#include "weft/io/safetensors.h"
#include "weft/nn/part.h"

namespace weft::distributed {

/// Where values belong in a whole tensor: the elements [begin, end) of a shard, in row-major order.
struct Piece {
  nn::Part part;
  std::int64_t begin = 0, end = 0;

  /// All of a shard.
  static Piece of(const nn::Part& part);
  /// All of an unsharded tensor.
  static Piece of(const Shape& whole) { return of(nn::Part{whole, {}}); }
};

struct PiecedTensor {
  Tensor values;  ///< of the shard's shape, or (end - begin) for a part of it
  Piece piece;
};
using Pieces = std::map<std::string, PiecedTensor>;

/// Writes the tensors of one rank as .safetensors. Unsharded tensors are stored as usual; for
/// shards the metadata key "pieces" says where they belong. Throws Error when values and piece
/// differ in their number of elements, and when writing fails.
io::FileSummary save_pieces(const std::string& path, const Pieces& pieces,
                            const io::Metadata& metadata = {});

/// The files of all ranks together. Reads tensors as if they had never been sharded, or sharded
/// another way.
class PieceFiles {
 public:
  /// Reads headers only; time and memory grow with these. Throws Error that names a damaged file,
  /// or two files that disagree about a tensor.
  explicit PieceFiles(const std::vector<std::string>& paths);

  std::vector<std::string> names() const;
  bool contains(const std::string& name) const;
  /// Shape of the whole tensor. Throws Error on a name that no file has.
  Shape shape(const std::string& name) const;
  /// Throws Error as shape().
  DType dtype(const std::string& name) const;
  /// Fills `out` with a piece of the tensor and converts the dtype if necessary. Memory: nothing
  /// beyond `out` if a file holds exactly this piece, else the whole tensor once. Throws Error as
  /// shape(), when the shape of the whole differs, when `out` and the piece differ in their number
  /// of elements, when elements are missing from all files, and when reading fails.
  void read_into(const std::string& name, const Piece& piece, const Tensor& out) const;
  /// The whole tensor, as a new CPU tensor. Throws Error as read_into().
  Tensor whole(const std::string& name) const;
  /// All tensors. Throws Error as read_into().
  StateDict state_dict() const;
  /// Returns the tensors of `like` with values from the files: for each tensor the piece that
  /// `place` returns, else the whole. A tensor that only the files have keeps its name, so that
  /// load_state_dict() rejects it. Throws Error as read_into().
  using Place = std::function<Piece(const std::string& name, const Shape& shape)>;
  StateDict like(const StateDict& like, const Place& place = {}) const;

 private:
  // One file's part of a tensor. Whole tensors have no Piece, because a file may hold hundreds of
  // thousands of tensors.
  struct Source {
    std::uint32_t file, tensor;
    std::uint32_t piece;  // kWhole or an index into pieces_
  };
  static constexpr std::uint32_t kWhole = UINT32_MAX;

  void add_file(const std::string& path);
  std::string_view name(const Source& s) const { return files_[s.file].name(s.tensor); }
  Shape whole_shape(const Source& s) const;
  Piece piece(const Source& s) const;
  /// All sources of a tensor. Throws Error when there is none.
  std::span<const Source> sources(const std::string& name) const;
  void check_agreement(const Source& first, const Source& other) const;
  void check_complete(const std::string& name, std::span<const Source> sources) const;

  std::vector<io::SafetensorsFile> files_;
  std::deque<Piece> pieces_;
  std::vector<Source> sources_;  // sorted by name, then by file
};

}  // namespace weft::distributed
