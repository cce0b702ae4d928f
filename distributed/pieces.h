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

/// Where values belong in a whole tensor: the elements [begin, end) of a part, counted row by row.
struct Piece {
  nn::Part part;
  std::int64_t begin = 0, end = 0;

  /// All of a part.
  static Piece of(const nn::Part& part);
  /// All of a tensor that is whole.
  static Piece of(const Shape& whole) { return of(nn::Part{whole, {}}); }
};

struct PiecedTensor {
  Tensor values;  ///< of the part's shape, or (end - begin) for less
  Piece piece;
};
using Pieces = std::map<std::string, PiecedTensor>;

/// Writes what one rank holds as .safetensors. Whole tensors look as they always do; of the others
/// the metadata say under "pieces" where they belong.
/// Throws Error when values and piece have different numbers of elements, and when writing fails.
io::FileSummary save_pieces(const std::string& path, const Pieces& pieces,
                            const io::Metadata& metadata = {});

/// The files of all ranks together: tensors as if they had never been cut, or cut another way.
class PieceFiles {
 public:
  /// Reads headers only: in time and memory that grow with these. Throws Error naming the file that
  /// is damaged, or two files that disagree about a tensor.
  explicit PieceFiles(const std::vector<std::string>& paths);

  std::vector<std::string> names() const;
  bool contains(const std::string& name) const;
  /// Of the whole tensor. Throws Error on a name that no file has.
  Shape shape(const std::string& name) const;
  /// Throws Error as shape().
  DType dtype(const std::string& name) const;
  /// Fills `out` with a piece of the tensor, converting the dtype if need be. Memory: `out` where
  /// a file has this very piece, else the whole tensor once.
  /// Throws Error as shape(), when the shape of the whole differs, `out` has not as many elements
  /// as the piece, or elements are in none of the files, and when reading fails.
  void read_into(const std::string& name, const Piece& piece, const Tensor& out) const;
  /// A new CPU tensor. Throws Error as read_into().
  Tensor whole(const std::string& name) const;
  /// All of them. Throws Error as read_into().
  StateDict state_dict() const;
  /// The tensors of `like` with the values of the files: of each the piece that `place` says, else
  /// all of it. Of a tensor that only the files have the name is kept, for load_state_dict() to
  /// refuse. Throws Error as read_into().
  using Place = std::function<Piece(const std::string& name, const Shape& shape)>;
  StateDict like(const StateDict& like, const Place& place = {}) const;

 private:
  // One file's part of a tensor. A file may name hundreds of thousands: a whole one has no Piece.
  struct Source {
    std::uint32_t file, tensor;
    std::uint32_t piece;  // kWhole or its place in pieces_
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
  std::vector<Source> sources_;  // in the order of their names, then of the files
};

}  // namespace weft::distributed
