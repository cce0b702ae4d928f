#pragma once
#include <cstdint>
#include <map>
#include <string>
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
  /// Reads headers only. Throws Error naming the file that is damaged, or two files that disagree
  /// about a tensor.
  explicit PieceFiles(const std::vector<std::string>& paths);

  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return entries_.contains(name); }
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

 private:
  struct Source {
    std::size_t file;
    Piece piece;
  };
  struct Entry {
    Shape shape;
    DType dtype;
    std::vector<Source> sources;
  };
  const Entry& entry(const std::string& name) const;

  std::vector<io::SafetensorsFile> files_;
  std::map<std::string, Entry> entries_;
};

}  // namespace weft::distributed
