#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/distributed/shard_slice.h"
#include "weft/distributed/world.h"
#include "weft/io/safetensors.h"

namespace weft::distributed {

/// The place of a tensor that a file has under another name, as a part of a larger one, and how its
/// values differ from those of that part.
struct Renamed {
  std::string name;
  ShardSlice slice;         ///< one range of elements, or, transposed, the whole
  bool transposed = false;  ///< as (in, out) where the whole is (out, in)
  /// Row i of the file's is row rows[i] of the part; empty: in the same order.
  std::vector<std::int64_t> rows = {};
  /// Name, in any of the files, of the f32 factors of an e4m3 matrix, one for each block of `block`
  /// rows and columns; empty: none. The products are rounded to bf16.
  std::string scales = {};
  std::int64_t block = 0;
};
/// x, with its row i as row rows[i]; or, `back`, row rows[i] as row i. Row: an index of axis 0.
/// Throws Error unless there are as many numbers as rows.
Tensor move_rows(const Tensor& x, const std::vector<std::int64_t>& rows, bool back = false);

/// By the name in the file; tensors that are not listed are left out.
using Renames = std::map<std::string, Renamed, std::less<>>;

/// The files of all ranks together. Reads tensors as if they had never been sharded, or sharded
/// another way. Keeps few files open, however many there are. Not for several threads at a time.
class ShardFiles {
 public:
  /// Reads headers only; time and memory grow with these. Throws Error that names a damaged file,
  /// or two files that disagree about a tensor.
  explicit ShardFiles(const std::vector<std::string>& paths);
  /// Reads files of another program. Of a tensor that it stores in parts, only those that a slice
  /// needs are read, and of these only the elements that it needs; those that are transposed,
  /// scaled or in another order of rows are read whole. Throws Error, too, when a listed tensor has
  /// not as many elements as its slice.
  ShardFiles(const std::vector<std::string>& paths, const Renames& renames);
  /// The same on every rank of the world, which call it together: rank 0 reads the headers, and the
  /// others open only the files whose data they need.
  ShardFiles(World& world, const std::vector<std::string>& paths);

  std::vector<std::string> paths() const;
  /// A number that changes with the files; reads at most 1 MiB of each.
  std::int64_t fingerprint() const;
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const;
  /// Shape of the whole tensor. Throws Error on a name that no file has.
  Shape shape(const std::string& name) const;
  /// Throws Error as shape().
  DType dtype(const std::string& name) const;
  /// Fills `out` with a slice of the tensor and converts the dtype if necessary. Reads only the
  /// slice from the files, in pieces that are less than a page apart. Memory: nothing beyond `out`
  /// if that is contiguous on the CPU and has the dtype, else the slice once more. Throws Error as
  /// shape(), when the shape of the whole differs, when `out` and the slice differ in their number
  /// of elements, when elements are missing from all files, and when reading fails.
  void read_into(const std::string& name, const ShardSlice& slice, const Tensor& out) const;
  /// The whole tensor, as a new CPU tensor. Throws Error as read_into().
  Tensor whole(const std::string& name) const;
  /// All tensors. Throws Error as read_into().
  StateDict state_dict() const;
  /// Returns the tensors of `like` with values from the files: for each tensor the slice that
  /// `place` returns, else the whole. A tensor that only the files have keeps its name, so that
  /// load_state_dict() rejects it. Throws Error as read_into().
  using Place = std::function<ShardSlice(const std::string& name, const Shape& shape)>;
  StateDict like(const StateDict& like, const Place& place = {}) const;

 private:
  // One file's part of a tensor. Whole tensors have no ShardSlice, because a file may hold hundreds
  // of thousands of tensors.
  struct Source {
    std::uint32_t file, tensor;
    std::uint32_t slice;  // kWhole or an index into slices_
  };
  static constexpr std::uint32_t kWhole = UINT32_MAX;

  void add_file(const std::string& path, io::SafetensorsIndex index);
  void add_renamed(const std::string& path, io::SafetensorsIndex index, const Renames& renames);
  void sort_sources();
  /// Opens the file for a read; closes the one that was opened longest ago if too many are.
  const io::SafetensorsFile& opened(std::uint32_t file) const;
  std::string_view name(const Source& s) const {
    return renamed_.empty() ? stored(s) : renamed_[s.slice].name;
  }
  /// Its name in the file.
  std::string_view stored(const Source& s) const { return files_[s.file].name(s.tensor); }
  Tensor tensor(const Source& s) const;
  DType dtype_of(const Source& s) const;
  /// Whether the values must be read whole: see Renamed.
  bool is_rearranged(const Source& s) const {
    if (renamed_.empty()) return false;
    const Renamed& r = renamed_[s.slice];
    return r.transposed || !r.rows.empty() || !r.scales.empty();
  }
  /// The file with the factors of a scaled tensor. Throws Error if there is none.
  std::uint32_t file_of(const Renamed& scaled) const;
  Tensor scaled(const Tensor& codes, const Renamed& how) const;
  Shape whole_shape(const Source& s) const;
  ShardSlice slice(const Source& s) const;
  /// The first source of a tensor, if it has any.
  std::vector<Source>::const_iterator first_of(const std::string& name) const;
  /// All sources of a tensor. Throws Error when there is none.
  std::span<const Source> sources(const std::string& name) const;
  /// Elements that are consecutive in the whole tensor and in a slice.
  struct Run {
    std::int64_t whole, own, count;
  };
  static std::vector<Run> runs_of(const ShardSlice& slice);
  /// Reads what the file has of `wanted`, whose `own` are elements of `out`. Returns the rest.
  std::vector<Run> read_from(const Source& s, const std::vector<Run>& wanted,
                             const Tensor& out) const;
  void check_agreement(const Source& first, const Source& other) const;
  void check_complete(const std::string& name, std::span<const Source> sources) const;

  std::vector<io::SafetensorsFile> files_;
  mutable std::deque<std::uint32_t> open_;  // files that may be open, oldest first
  std::deque<ShardSlice> slices_;
  std::deque<Renamed> renamed_;  // of each slice, if the files are another program's
  std::vector<Source> sources_;  // sorted by name, then by file
};

}  // namespace weft::distributed
