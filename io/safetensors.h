#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/core/named_tensor.h"
#include "weft/core/tensor_source.h"
#include "weft/io/file.h"

namespace weft::io {

using Metadata = std::map<std::string, std::string>;

/// Writes tensors of any Weft dtype as .safetensors: atomically, fsynced, and in an order that
/// keeps every tensor aligned (wider dtypes first, then by name).
/// Throws Error on a null or meta tensor, a reserved name, and when writing fails.
FileSummary save_safetensors(const std::string& path, const StateDict& tensors,
                             const Metadata& metadata = {});
/// The same with one tensor in memory at a time. Also throws Error when a stop is requested.
FileSummary write_safetensors(const std::string& path, const TensorSources& tensors,
                              const Metadata& metadata = {}, const std::stop_token& stop = {});

/// Every tensor of a file, on the CPU. I8, I16 and U16 become i32, U32 becomes i64.
/// Throws Error when the file is not a valid .safetensors file, or has a dtype that Weft does not
/// support.
StateDict load_safetensors(const std::string& path);

/// Size and header of a .safetensors file: all that is needed to list its tensors.
struct SafetensorsIndex {
  std::int64_t file_bytes = 0;
  std::string header;  ///< JSON
};

/// A .safetensors file open for reading. Opening reads and validates the header only; data are read
/// from the file directly into the requested tensor.
class SafetensorsFile {
 public:
  /// Opens and validates: the header fits, the JSON is strict, sizes match shapes, and the data
  /// have no gap, overlap or left-over bytes.
  /// Throws Error naming the file and the violated rule.
  static SafetensorsFile open(const std::string& path);
  /// The index of a file, not validated except that header and file have the right lengths. Throws
  /// Error as open() where they have not.
  static SafetensorsIndex read_index(const std::string& path);
  /// Validates an index as open() does and touches no file: the first read opens `path`.
  static SafetensorsFile of_index(const std::string& path, SafetensorsIndex index);
  /// Releases the file; the next read opens it again. A process may have 1,024 files open, and a
  /// checkpoint may have more. Throws Error at a read if the size has changed.
  void close() const { file_.reset(); }
  bool is_open() const { return file_.has_value(); }

  const std::string& path() const { return path_; }
  /// In the order of the data.
  std::vector<std::string> names() const;
  std::size_t size() const { return entries_.size(); }
  /// The name of tensor i in the order of the data; valid until the file is closed or moved.
  std::string_view name(std::size_t i) const { return name_of(entries_[i]); }
  /// The index of a tensor in that order; size() when there is no such tensor.
  std::size_t find(std::string_view name) const;
  bool contains(std::string_view name) const { return find(name) < size(); }
  const Metadata& metadata() const { return metadata_; }

  /// Shape and dtype without the data.
  /// Throws Error when the file has no such tensor, or its dtype is not supported by Weft.
  Shape shape(const std::string& name) const;
  DType dtype(const std::string& name) const;
  /// A new CPU tensor.
  Tensor tensor(const std::string& name) const;
  /// Fills `out`, converting the dtype if needed. A contiguous CPU tensor of the file's dtype is
  /// filled in place, without a second copy in memory.
  /// Throws Error when the shapes differ.
  void read_into(const std::string& name, const Tensor& out) const;
  /// Fills `out`, a contiguous CPU tensor of the file's dtype, with consecutive elements of the
  /// tensor from element `first` on, and reads nothing else.
  /// Throws Error when the tensor does not have them.
  void read_elements(const std::string& name, std::int64_t first, const Tensor& out) const;

 private:
  // A header may list a tensor in 50 bytes; an entry must not be much larger.
  struct Entry {
    std::int64_t begin = 0, end = 0;  ///< bytes, counted from the end of the header
    std::uint32_t name = 0, name_bytes = 0;
    std::uint32_t axes = 0;  ///< index of its first axis length
    std::uint8_t ndim = 0;
    std::uint8_t dtype = 0;  ///< index into the table of the format's dtypes
  };

  explicit SafetensorsFile(std::string path) : path_(std::move(path)) {}
  const InputFile& file() const;
  const Entry& entry(const std::string& name) const;
  std::string_view name_of(const Entry& e) const {
    return std::string_view(names_).substr(e.name, e.name_bytes);
  }
  Shape shape_of(const Entry& e) const;
  DType dtype_of_entry(const Entry& e) const;
  void read_data(const Entry& e, std::int64_t first, const Tensor& out) const;

  friend class SafetensorsHeader;
  std::string path_;
  mutable std::optional<InputFile> file_;
  std::int64_t file_bytes_ = 0, data_start_ = 0;
  std::vector<Entry> entries_;
  std::vector<std::uint32_t> by_name_;  ///< entry indices sorted by name
  std::string names_;                   ///< concatenated
  std::vector<std::int64_t> axes_;
  Metadata metadata_;
};

}  // namespace weft::io
