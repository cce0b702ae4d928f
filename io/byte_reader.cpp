#include "weft/io/byte_reader.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "weft/core/error.h"
#if WEFT_WITH_ZLIB
#include <zlib.h>
#endif
#if WEFT_WITH_ZSTD
#include <zstd.h>
#endif

namespace weft::io {
namespace {

constexpr std::string_view kGzip("\x1f\x8b", 2), kZstd("\x28\xb5\x2f\xfd", 4);
// After a byte of 0x50 to 0x5f: a frame that zstd skips.
constexpr std::string_view kSkippable("\x2a\x4d\x18", 3);
constexpr std::pair<std::string_view, const char*> kOthers[] = {
    {{"\xfd\x37\x7a\x58\x5a\x00", 6}, "xz"}, {{"\x04\x22\x4d\x18", 4}, "lz4"}};
constexpr std::string_view kBzip2 = "BZh", kBlock = "1AY&SY";  // with the level between
constexpr std::size_t kInputBytes = 1 << 17;

#if WEFT_WITH_ZLIB
class Gzip final : public ByteReader::Decoder {
 public:
  Gzip() { check_system(inflateInit2(&z_, 15 + 16) == Z_OK, "read: zlib has no memory"); }
  ~Gzip() override { inflateEnd(&z_); }
  std::string step(const char*& in, std::size_t& in_bytes, char*& out,
                   std::size_t& out_bytes) override {
    // A file may be several members, one after the other.
    if (complete_ && in_bytes > 0) complete_ = inflateReset(&z_) != Z_OK;
    z_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in));
    z_.avail_in = static_cast<uInt>(in_bytes);
    z_.next_out = reinterpret_cast<Bytef*>(out);
    z_.avail_out = static_cast<uInt>(std::min<std::size_t>(out_bytes, 1u << 30));
    const std::size_t room = z_.avail_out;
    const int status = inflate(&z_, Z_NO_FLUSH);
    in += in_bytes - z_.avail_in;
    in_bytes = z_.avail_in;
    out += room - z_.avail_out;
    out_bytes -= room - z_.avail_out;
    complete_ = status == Z_STREAM_END;
    if (status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR) return "";
    return z_.msg ? z_.msg : "wrong data";
  }
  bool is_complete() const override { return complete_; }

 private:
  z_stream z_ = {};
  bool complete_ = false;
};
#endif

#if WEFT_WITH_ZSTD
class Zstd final : public ByteReader::Decoder {
 public:
  Zstd() : z_(ZSTD_createDStream()) { check_system(z_ != nullptr, "read: zstd has no memory"); }
  ~Zstd() override { ZSTD_freeDStream(z_); }
  std::string step(const char*& in, std::size_t& in_bytes, char*& out,
                   std::size_t& out_bytes) override {
    ZSTD_inBuffer from{in, in_bytes, 0};
    ZSTD_outBuffer to{out, out_bytes, 0};
    const std::size_t status = ZSTD_decompressStream(z_, &to, &from);
    in += from.pos;
    in_bytes -= from.pos;
    out += to.pos;
    out_bytes -= to.pos;
    if (ZSTD_isError(status)) return ZSTD_getErrorName(status);
    if (from.pos > 0 || to.pos > 0) complete_ = status == 0;  // of a frame; others may follow
    return "";
  }
  bool is_complete() const override { return complete_; }

 private:
  ZSTD_DStream* z_;
  bool complete_ = false;
};
#endif

template <class D>
std::unique_ptr<ByteReader::Decoder> make(const std::string&) {
  return std::make_unique<D>();
}

[[maybe_unused]] std::unique_ptr<ByteReader::Decoder> refuse(const std::string& path,
                                                             const char* tool,
                                                             const char* package) {
  throw Error(
      message("read: '{}' needs a build with {}; install {} and build again, or decompress "
              "the file",
              path, tool, package));
}

std::unique_ptr<ByteReader::Decoder> gzip_for(const std::string& path) {
#if WEFT_WITH_ZLIB
  return make<Gzip>(path);
#else
  return refuse(path, "zlib", "zlib1g-dev");
#endif
}

std::unique_ptr<ByteReader::Decoder> zstd_for(const std::string& path) {
#if WEFT_WITH_ZSTD
  return make<Zstd>(path);
#else
  return refuse(path, "zstd", "libzstd-dev");
#endif
}

}  // namespace

ByteReader::ByteReader(const std::string& path) : file_(path) {
  char bytes[10] = {};
  const auto count = static_cast<std::size_t>(std::min<std::int64_t>(file_.size(), sizeof bytes));
  file_.read(0, bytes, static_cast<std::int64_t>(count));
  const std::string_view first(bytes, count);
  if (first.starts_with(kGzip)) decoder_ = gzip_for(path);
  const bool skips = count > 4 && (bytes[0] & 0xf0) == 0x50 && first.substr(1, 3) == kSkippable;
  if (first.starts_with(kZstd) || skips) decoder_ = zstd_for(path);
  const auto refuse_if = [&](bool is_compressed, const char* tool) {
    check(!is_compressed, "read: '{}' is compressed by {}; use gzip or zstd, or decompress it",
          path, tool);
  };
  for (const auto& [begin, tool] : kOthers) refuse_if(first.starts_with(begin), tool);
  refuse_if(first.starts_with(kBzip2) && first.ends_with(kBlock) && count == sizeof bytes, "bzip2");
}

ByteReader::~ByteReader() = default;
ByteReader::ByteReader(ByteReader&&) noexcept = default;
ByteReader& ByteReader::operator=(ByteReader&&) noexcept = default;

std::size_t ByteReader::read_file(char* out, std::size_t bytes) {
  const auto count = std::min(static_cast<std::int64_t>(bytes), file_.size() - at_);
  file_.read(at_, out, count);
  at_ += count;
  return static_cast<std::size_t>(count);
}

std::size_t ByteReader::read(char* out, std::size_t bytes) {
  if (!decoder_) return read_file(out, bytes);
  char* to = out;
  std::size_t room = bytes;
  while (room > 0) {
    if (input_at_ == input_.size()) {
      input_.resize(kInputBytes);
      input_.resize(read_file(input_.data(), kInputBytes));
      input_at_ = 0;
    }
    const char* in = input_.data() + input_at_;
    std::size_t in_bytes = input_.size() - input_at_;
    const bool at_end = in_bytes == 0;
    if (at_end && decoder_->is_complete()) break;
    const std::size_t before = room;
    const std::string problem = decoder_->step(in, in_bytes, to, room);
    check(problem.empty(), "read: '{}' is damaged after {} bytes of it: {}", path(), at_, problem);
    input_at_ = input_.size() - in_bytes;
    check(!at_end || room < before || decoder_->is_complete(),
          "read: '{}' ends in the middle of its compressed data", path());
  }
  return bytes - room;
}

std::string read_decompressed(const std::string& path, std::int64_t most_bytes) {
  ByteReader reader(path);
  std::string out;
  constexpr std::size_t kPiece = 1 << 20;
  for (;;) {
    const std::size_t before = out.size();
    out.resize(before + kPiece);
    out.resize(before + reader.read(out.data() + before, kPiece));
    check(static_cast<std::int64_t>(out.size()) <= most_bytes,
          "read: '{}' must have at most {} bytes when it is decompressed", path, most_bytes);
    if (out.size() < before + kPiece) return out;
  }
}

}  // namespace weft::io
