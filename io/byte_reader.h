#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "weft/io/file.h"

namespace weft::io {

/// The bytes of a file from its beginning, decompressed if its first bytes say that it is a gzip or
/// zstd file. Holds a few hundred kilobytes; a zstd file may ask for a window of up to 128 MiB.
class ByteReader {
 public:
  /// Throws Error when the file is compressed in a format that this build cannot read.
  explicit ByteReader(const std::string& path);
  ~ByteReader();
  ByteReader(ByteReader&&) noexcept;
  ByteReader& operator=(ByteReader&&) noexcept;

  /// Reads `bytes` more, or fewer at the end of the file; returns how many.
  /// Throws Error on compressed data that are damaged or end too early.
  std::size_t read(char* out, std::size_t bytes);
  const std::string& path() const { return file_.path(); }
  bool is_compressed() const { return decoder_ != nullptr; }
  /// Bytes of the file itself: in all, and read so far.
  std::int64_t file_bytes() const { return file_.size(); }
  std::int64_t file_bytes_read() const { return at_; }

  /// The interface of a decompressor.
  class Decoder {
   public:
    virtual ~Decoder() = default;
    /// Consumes from [in, in + in_bytes) and writes up to out_bytes; changes both pairs to what is
    /// left. Returns "" or what is wrong with the data.
    virtual std::string step(const char*& in, std::size_t& in_bytes, char*& out,
                             std::size_t& out_bytes) = 0;
    /// Whether the data may end here.
    virtual bool is_complete() const = 0;
  };

 private:
  std::size_t read_file(char* out, std::size_t bytes);

  InputFile file_;
  std::int64_t at_ = 0;
  std::unique_ptr<Decoder> decoder_;  ///< null: as it is
  std::string input_;                 ///< of the decoder
  std::size_t input_at_ = 0;
};

/// The whole file, decompressed. Throws Error as ByteReader does, and beyond `most_bytes`.
std::string read_decompressed(const std::string& path, std::int64_t most_bytes);

}  // namespace weft::io
