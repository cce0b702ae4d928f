#include "weft/data/megatron.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/core/error.h"

namespace weft::data {
namespace {

using std::int64_t;

constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr int64_t kIndexHeaderBytes = 34, kIndexVersion = 1;
constexpr std::size_t kFlushBytes = 1 << 20;

int width_of(int code) { return code == 1 ? 1 : code == 8 ? 2 : code == 4 ? 4 : 0; }

template <class T>
T value_at(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

/// An array in a file, of which a piece is in memory: the one around the latest access.
template <class T>
class FileArray {
 public:
  FileArray(const io::InputFile& file, int64_t first_byte, int64_t count)
      : file_(file), first_byte_(first_byte), count_(count) {}
  T operator[](int64_t i) {
    if (i < first_ || i >= first_ + std::ssize(piece_)) {
      first_ = i;
      piece_.resize(static_cast<std::size_t>(std::min<int64_t>(kPiece, count_ - i)));
      constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
      file_.read(first_byte_ + kBytes * i, piece_.data(), kBytes * std::ssize(piece_));
    }
    return piece_[static_cast<std::size_t>(i - first_)];
  }

 private:
  static constexpr int64_t kPiece = 1 << 13;
  const io::InputFile& file_;
  int64_t first_byte_, count_, first_ = 0;
  std::vector<T> piece_;
};

}  // namespace

MegatronIndex::MegatronIndex(const std::string& idx, int64_t bin_bytes) : file_(idx) {
  const int64_t size = file_.size();
  char header[kIndexHeaderBytes];
  check(size >= kIndexHeaderBytes, "data: '{}' must have a header of {} bytes, got {}", idx,
        kIndexHeaderBytes, size);
  file_.read(0, header, kIndexHeaderBytes);
  check(std::string_view(header, kIndexMagic.size()) == kIndexMagic,
        "data: '{}' must begin with MMIDIDX, as Megatron writes .idx files", idx);
  const auto version = value_at<int64_t>(header + 9);
  check(version == kIndexVersion, "data: '{}' must have version 1, got {}", idx, version);
  const int code = static_cast<unsigned char>(header[17]);
  width_ = width_of(code);
  check(width_ > 0,
        "data: '{}' must have tokens of type 1 (uint8), 8 (uint16) or 4 (int32), got {}", idx,
        code);
  sequences_ = value_at<int64_t>(header + 18);
  entries_ = value_at<int64_t>(header + 26);
  // Bounds first, so that the products below cannot overflow.
  check(
      sequences_ >= 1 && entries_ >= 2 && sequences_ <= size / 12 && entries_ <= size / 8,
      "data: '{}' must have at least 1 sequence and 1 document, and room for them in its {} bytes, "
      "got {} and {}",
      idx, size, sequences_, entries_ - (entries_ > 0 ? 1 : 0));
  const int64_t wanted = kIndexHeaderBytes + 12 * sequences_ + 8 * entries_;
  check(size == wanted || size == wanted + sequences_,
        "data: '{}' must have {} bytes for its {} sequences and {} documents, got {}", idx, wanted,
        sequences_, entries_ - 1, size);
  check_sequences(bin_bytes);
  check_documents();
}

void MegatronIndex::check_sequences(int64_t bin_bytes) {
  FileArray<std::int32_t> lengths(file_, kIndexHeaderBytes, sequences_);
  FileArray<int64_t> begins(file_, kIndexHeaderBytes + 4 * sequences_, sequences_);
  int64_t bytes = 0;  // at most bin_bytes + 2^33
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t length = lengths[i], begin = begins[i];
    check(begin == bytes,
          "data: '{}' must have its sequences one after the other, but number {} begins at byte {} "
          "instead of {}",
          file_.path(), i, begin, bytes);
    check(length >= 0 && bytes <= bin_bytes,
          "data: '{}' must have sequences inside the {} bytes of its .bin, but number {} has {} "
          "tokens at byte {}",
          file_.path(), bin_bytes, i, length, begin);
    bytes += width_ * length;
  }
  check(bytes == bin_bytes && bytes > 0,
        "data: '{}' must have the {} bytes of its .bin in sequences, got {}", file_.path(),
        bin_bytes, bytes);
  tokens_ = bytes / width_;
}

void MegatronIndex::check_documents() const {
  FileArray<int64_t> firsts(file_, kIndexHeaderBytes + 12 * sequences_, entries_);
  int64_t before = 0;
  for (int64_t d = 0; d < entries_; ++d) {
    const int64_t first = firsts[d];
    const bool fits = d == 0              ? first == 0
                      : d == entries_ - 1 ? first == sequences_ && first >= before
                                          : first >= before && first <= sequences_;
    check(
        fits,
        "data: '{}' must have documents that begin in ascending order, from sequence 0 to {}, got "
        "{} at number {}",
        file_.path(), sequences_, first, d);
    before = first;
  }
}

void MegatronIndex::each_document_end(const std::function<bool(int64_t)>& f) const {
  FileArray<int64_t> begins(file_, kIndexHeaderBytes + 4 * sequences_, sequences_);
  FileArray<int64_t> firsts(file_, kIndexHeaderBytes + 12 * sequences_, entries_);
  for (int64_t d = 1; d < entries_; ++d) {
    const int64_t next = firsts[d];
    check_system(next >= 0 && next <= sequences_ && !file_.changed(),
                 "data: '{}' must not change while it is read, but was written to", file_.path());
    if (!f(next == sequences_ ? tokens_ : begins[next] / width_)) return;
  }
}

MegatronWriter::MegatronWriter(std::string stem, int width, std::optional<Position> from)
    : stem_(std::move(stem)), width_(width) {
  check(width == 2 || width == 4, "megatron writer: width must be 2 or 4, got {}", width);
  at_ = from.value_or(Position{});
  const std::pair<const char*, int64_t> parts[] = {{"bin", width_ * at_.tokens},
                                                   {"lengths", 4 * at_.sequences},
                                                   {"documents", 8 * at_.documents}};
  for (const auto& [name, bytes] : parts) {
    if (!from) {
      io::write_file(part(name), "");
      continue;
    }
    const int64_t now = io::file_size(part(name));
    check(bytes >= 0 && now >= bytes, "megatron writer: '{}' must have {} bytes or more, got {}",
          part(name), bytes, now);
    std::filesystem::resize_file(part(name), static_cast<std::uintmax_t>(bytes));
  }
  documented_ = at_.sequences;
}

void MegatronWriter::add(std::span<const std::int32_t> tokens, bool ends_document) {
  check(tokens.size() <= INT32_MAX, "megatron writer: a sequence takes at most {} tokens, got {}",
        INT32_MAX, tokens.size());
  const std::int32_t highest = width_ == 2 ? UINT16_MAX : INT32_MAX;
  for (const std::int32_t t : tokens) {
    check(t >= 0 && t <= highest, "megatron writer: a token must be in [0, {}], got {}", highest,
          t);
    if (width_ == 2)
      append(bin_, static_cast<std::uint16_t>(t));
    else
      append(bin_, t);
  }
  append(lengths_, static_cast<std::int32_t>(tokens.size()));
  at_.tokens += std::ssize(tokens);
  ++at_.sequences;
  if (ends_document) {
    append(documents_, at_.sequences);
    ++at_.documents;
    documented_ = at_.sequences;
  }
  if (bin_.size() + lengths_.size() + documents_.size() >= kFlushBytes) flush();
}

void MegatronWriter::flush() {
  for (const auto& [name, bytes] : {std::pair<const char*, std::string*>{"bin", &bin_},
                                    {"lengths", &lengths_},
                                    {"documents", &documents_}}) {
    if (!bytes->empty()) io::append_file(part(name), *bytes);
    bytes->clear();
  }
}

const MegatronWriter::Position& MegatronWriter::sync() {
  flush();
  for (const char* name : {"bin", "lengths", "documents"}) io::sync_file(part(name));
  return at_;
}

void MegatronWriter::commit() {
  check(at_.tokens > 0, "megatron writer: '{}' must have at least 1 token, got none", stem_);
  if (documented_ < at_.sequences) {
    append(documents_, at_.sequences);
    ++at_.documents;
    documented_ = at_.sequences;
  }
  sync();
  std::string header(kIndexMagic);
  append(header, kIndexVersion);
  header.push_back(static_cast<char>(width_ == 2 ? 8 : 4));
  append(header, at_.sequences);
  append(header, at_.documents + 1);
  io::AtomicFile idx(stem_ + ".idx");
  idx.write(header);
  std::string piece;
  // Copies `bytes` per item of a part, converted by f.
  const auto each = [&]<class T>(T, const char* name, int64_t count, auto&& f) {
    const io::InputFile file(part(name));
    FileArray<T> items(file, 0, count);
    for (int64_t i = 0; i < count; ++i) {
      f(items[i]);
      if (piece.size() >= kFlushBytes || i + 1 == count) {
        idx.write(piece);
        piece.clear();
      }
    }
  };
  each(std::int32_t{}, "lengths", at_.sequences, [&](std::int32_t n) { append(piece, n); });
  int64_t begin = 0;
  each(std::int32_t{}, "lengths", at_.sequences, [&](std::int32_t n) {
    append(piece, begin);
    begin += int64_t{width_} * n;
  });
  append(piece, int64_t{0});
  each(int64_t{}, "documents", at_.documents, [&](int64_t first) { append(piece, first); });
  // The index first: a .bin file alone would be read as uint16 tokens without documents. A crash
  // in between leaves the parts, from which commit() can be repeated.
  idx.commit();
  io::rename_synced(part("bin"), stem_ + ".bin");
  io::remove_all(part("lengths"));
  io::remove_all(part("documents"));
}

}  // namespace weft::data
