#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "weft/core/tensor.h"
#include "weft/io/file.h"

namespace weft::io {

// GGUF, version 3: the files of llama.cpp. Metadata of named values, tensors with their types, and
// their data, each at a multiple of 32 bytes.
// Source: docs/gguf.md of github.com/ggml-org/ggml.

/// A value of the metadata. Other integers of a file become std::int64_t when read, f64 stays.
using GgufValue =
    std::variant<bool, std::uint32_t, std::int64_t, float, double, std::string,
                 std::vector<std::int32_t>, std::vector<float>, std::vector<std::string>>;
using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

/// The types of tensors that are written, with their numbers in files. q8_0: blocks of 32 values of
/// a row, each an i8, with a factor in f16.
enum class GgufType : std::uint32_t { f32 = 0, f16 = 1, q8_0 = 8, bf16 = 30 };
inline constexpr std::int64_t kGgufBlock = 32;  ///< values of a q8_0 block

/// The name of a type by its number, also of those that are not written; "type 99" for others.
std::string gguf_type_name(std::uint32_t type);
/// The bytes of so many values in rows of a type; -1: the type is not known, or the rows do not
/// consist of whole blocks.
std::int64_t gguf_bytes(std::uint32_t type, std::int64_t rows, std::int64_t columns);

struct GgufTensor {
  std::string name;
  Shape shape;  ///< rows first, as everywhere in Weft; a file has the axes in the other order
  GgufType type;
  /// Its values in order, in pieces of whole rows: one is in memory at a time.
  std::vector<std::function<Tensor()>> pieces;
};

/// Writes a file, atomically and fsynced. Values are converted from any floating dtype by way of
/// f32; q8_0 as llama.cpp does it. Memory: a piece, and the piece in the type of the file.
/// Throws Error on a shape that does not fit its type, pieces with another number of values, a
/// value that q8_0 or f16 cannot hold, and when writing fails.
FileSummary write_gguf(const std::string& path, const GgufMetadata& metadata,
                       const std::vector<GgufTensor>& tensors);

/// The q8_0 blocks of values whose number is a multiple of 32.
std::string gguf_q8_0(std::span<const float> values);

/// The header of a file. Reads no tensor.
class GgufFile {
 public:
  /// An array of the metadata, or a text that is too long to keep, stays in the file.
  struct Entry {
    std::string key;
    std::string type;         ///< "string", "u32", "i32 array"
    GgufValue value;          ///< unless it is an array
    std::int64_t count = -1;  ///< values of an array; -1: not an array
    std::int64_t at = 0;      ///< where an array begins in the file
  };
  struct Info {
    std::string name;
    Shape shape;  ///< rows first
    std::uint32_t type = 0;
    std::int64_t begin = 0, bytes = 0;  ///< in the file
  };

  /// Opens and validates: counts, lengths, types and offsets fit into the file, names are unique,
  /// tensors do not overlap. Memory grows with the number of entries, of which there are at most a
  /// million, and never with the lengths that a file claims.
  /// Throws Error on anything else than a GGUF file of version 2 or 3.
  static GgufFile open(const std::string& path);

  std::uint32_t version() const { return version_; }
  const std::vector<Entry>& entries() const { return entries_; }
  const std::vector<Info>& tensors() const { return tensors_; }
  /// The entry of a key, or null.
  const Entry* find(std::string_view key) const;
  /// The texts of an array. Throws Error if it is not one of strings.
  std::vector<std::string> strings(const Entry& array) const;
  /// The bytes of a tensor in its type.
  std::string data(const Info& tensor) const;

 private:
  class Reader;
  explicit GgufFile(InputFile file) : file_(std::move(file)) {}

  InputFile file_;
  std::uint32_t version_ = 0;
  std::vector<Entry> entries_;
  std::vector<Info> tensors_;
};

}  // namespace weft::io
