#include "weft/data/token_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "weft/core/error.h"
#include "weft/data/megatron.h"
#include "weft/io/file.h"

namespace weft::data {
namespace {

constexpr std::int64_t kHeaderInts = 256, kHeaderBytes = 4 * kHeaderInts;
constexpr std::int64_t kPiece = 1 << 16;  // tokens per read of max_token()
constexpr std::int32_t kMagic = 20240520, kVersion = 1;
constexpr std::int32_t kMagicLlama3 = 20240801, kVersionLlama3 = 7;
// A format of the same family: reading it as raw uint16 would train on garbage.
constexpr std::int32_t kMagicEval = 20240522;

/// Calls f with a typed pointer to the tokens.
template <class F>
void with_type(const unsigned char* data, int width, F&& f) {
  if (width == 1)
    f(data);
  else if (width == 2)
    f(reinterpret_cast<const std::uint16_t*>(data));
  else
    f(reinterpret_cast<const std::int32_t*>(data));
}

template <class T>
void widen(const unsigned char* from, std::span<std::int32_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T token;
    std::memcpy(&token, from + sizeof(T) * i, sizeof(T));
    out[i] = token;
  }
}

TokenStream open_megatron(const std::string& idx, const std::string& bin) {
  check(io::exists(bin), "data: '{}' must have its tokens beside it, but there is no file '{}'",
        idx, bin);
  auto file = std::make_shared<const io::InputFile>(bin);
  auto index = std::make_shared<const MegatronIndex>(idx, file->size());
  const std::int64_t tokens = index->tokens();
  const int width = index->width();
  return TokenStream::of_file(std::move(file), 0, tokens, width, std::move(index));
}

}  // namespace

TokenStream TokenStream::of(std::vector<std::int32_t> tokens) {
  auto owner = std::make_shared<const std::vector<std::int32_t>>(std::move(tokens));
  TokenStream s;
  s.data_ = reinterpret_cast<const unsigned char*>(owner->data());
  s.size_ = static_cast<std::int64_t>(owner->size());
  s.width_ = 4;
  s.owner_ = std::move(owner);
  return s;
}

TokenStream TokenStream::of(std::vector<std::uint16_t> tokens) {
  auto owner = std::make_shared<const std::vector<std::uint16_t>>(std::move(tokens));
  TokenStream s;
  s.data_ = reinterpret_cast<const unsigned char*>(owner->data());
  s.size_ = static_cast<std::int64_t>(owner->size());
  s.width_ = 2;
  s.owner_ = std::move(owner);
  return s;
}

TokenStream TokenStream::of_bytes(std::string text) {
  auto owner = std::make_shared<const std::string>(std::move(text));
  TokenStream s;
  s.data_ = reinterpret_cast<const unsigned char*>(owner->data());
  s.size_ = static_cast<std::int64_t>(owner->size());
  s.owner_ = std::move(owner);
  return s;
}

TokenStream TokenStream::joined(std::vector<TokenStream> parts) {
  if (parts.size() == 1) return parts[0];
  TokenStream s;
  for (const TokenStream& part : parts) s.size_ += part.size_;
  s.parts_ = std::make_shared<const std::vector<TokenStream>>(std::move(parts));
  return s;
}

TokenStream TokenStream::of_file(std::shared_ptr<const io::InputFile> file, std::int64_t first_byte,
                                 std::int64_t size, int width,
                                 std::shared_ptr<const MegatronIndex> index) {
  TokenStream s;
  s.file_ = std::move(file);
  s.index_ = std::move(index);
  s.first_byte_ = first_byte;
  s.size_ = size;
  s.width_ = width;
  return s;
}

int TokenStream::width() const {
  int widest = width_;
  if (parts_)
    for (const TokenStream& part : *parts_) widest = std::max(widest, part.width());
  return widest;
}

template <class F>
void TokenStream::each_part(std::int64_t first, std::int64_t count, F&& f) const {
  first += first_token_;
  for (const TokenStream& part : *parts_) {
    if (count == 0) return;
    const std::int64_t here = std::min(count, part.size_ - first);
    if (here > 0) {
      f(part, first, here);
      count -= here;
      first += here;
    }
    first -= part.size_;
  }
}

void TokenStream::read(std::int64_t first, std::span<std::int32_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  check(first >= 0 && count <= size_ - first, "tokens: [{}, {}) must lie in [0, {})", first,
        first + count, size_);
  if (parts_)
    return each_part(first, count,
                     [&](const TokenStream& part, std::int64_t at, std::int64_t here) {
                       part.read(at, out.first(static_cast<std::size_t>(here)));
                       out = out.subspan(static_cast<std::size_t>(here));
                     });
  if (!file_)
    return with_type(data_, width_,
                     [&](const auto* p) { std::copy_n(p + first, count, out.begin()); });
  // Reads the narrow tokens of the file into the end of `out` and widens them from there.
  auto* const narrow = reinterpret_cast<unsigned char*>(out.data()) + (4 - width_) * count;
  file_->read(first_byte_ + width_ * first, narrow, width_ * count);
  if (width_ == 1) widen<std::uint8_t>(narrow, out);
  if (width_ == 2) widen<std::uint16_t>(narrow, out);
  if (width_ == 4) {
    const auto negative = std::find_if(out.begin(), out.end(), [](auto t) { return t < 0; });
    check(negative == out.end(), "data: '{}' must hold tokens of at least 0, got {} at token {}",
          file_->path(), negative == out.end() ? 0 : *negative,
          before_ + first + (negative - out.begin()));
  }
  check_unchanged();
}

void TokenStream::will_read(std::int64_t first, std::int64_t count) const {
  if (parts_)
    return each_part(first, count, [](const TokenStream& part, std::int64_t at, std::int64_t here) {
      part.will_read(at, here);
    });
  if (file_) file_->will_read(first_byte_ + width_ * first, width_ * count);
}

bool TokenStream::changed() const {
  if (parts_)
    return std::any_of(parts_->begin(), parts_->end(), [](const auto& p) { return p.changed(); });
  return file_ && file_->changed();
}

void TokenStream::check_unchanged() const {
  if (parts_)
    for (const TokenStream& part : *parts_) part.check_unchanged();
  if (!file_) return;
  check_system(!file_->changed(), "data: '{}' must not change while it is read, but was written to",
               file_->path());
}

TokenStream TokenStream::slice(std::int64_t first, std::int64_t count) const {
  check(first >= 0 && count >= 0 && count <= size_ - first, "tokens: [{}, {}) must lie in [0, {})",
        first, first + count, size_);
  TokenStream s = *this;
  if (parts_) {
    s.first_token_ += first;
  } else if (file_) {
    s.first_byte_ += first * width_;
    s.before_ += first;
  } else {
    s.data_ += first * width_;
  }
  s.size_ = count;
  return s;
}

std::int32_t TokenStream::max_token() const {
  std::int32_t highest = -1;
  if (parts_) {
    each_part(0, size_, [&](const TokenStream& part, std::int64_t first, std::int64_t count) {
      highest = std::max(highest, part.slice(first, count).max_token());
    });
    return highest;
  }
  if (file_) {
    std::vector<std::int32_t> piece(static_cast<std::size_t>(std::min(size_, kPiece)));
    for (std::int64_t at = 0; at < size_; at += kPiece) {
      const auto n = static_cast<std::size_t>(std::min(size_ - at, kPiece));
      read(at, {piece.data(), n});
      highest = std::max(highest, *std::max_element(piece.begin(), piece.begin() + n));
    }
    return highest;
  }
  with_type(data_, width_, [&](const auto* p) {
    for (std::int64_t i = 0; i < size_; ++i) highest = std::max<std::int32_t>(highest, p[i]);
  });
  return highest;
}

bool TokenStream::has_documents() const {
  if (parts_)
    return std::all_of(parts_->begin(), parts_->end(),
                       [](const auto& p) { return p.has_documents(); });
  return index_ != nullptr;
}

void TokenStream::each_document_end(const std::function<bool(std::int64_t)>& f) const {
  check(has_documents(), "tokens: only files with an .idx file say where their documents end");
  std::int64_t last = 0;
  bool goes_on = true;
  const auto emit = [&](std::int64_t end) {
    if (end > last && end <= size_) {
      last = end;
      goes_on = f(end);
    }
    return goes_on && end < size_;
  };
  if (parts_) {
    std::int64_t before = -first_token_;
    for (const TokenStream& part : *parts_) {
      if (!goes_on || before >= size_) break;
      part.each_document_end([&](std::int64_t end) { return emit(before + end); });
      before += part.size_;
    }
  } else {
    index_->each_document_end([&](std::int64_t end) { return emit(end - before_); });
  }
  if (goes_on && last < size_) f(size_);
}

bool is_token_file(const std::string& path) {
  return path.ends_with(".bin") || path.ends_with(".idx");
}

void check_is_text(const std::string& path) {
  check(!is_token_file(path),
        "data: a text must have another name than a token file, .bin or .idx, got '{}'", path);
}

TokenStream open_token_file(const std::string& path) {
  const std::string stem = path.substr(0, path.rfind('.'));
  if (path.ends_with(".idx")) return open_megatron(path, stem + ".bin");
  if (path.ends_with(".bin") && io::path_kind(path) == io::PathKind::file &&
      io::exists(stem + ".idx"))
    return open_megatron(stem + ".idx", path);
  TokenStream s;
  s.width_ = 2;
  std::int64_t bytes = 0;
  std::int32_t header[3] = {};
  switch (io::path_kind(path)) {
    case io::PathKind::none:
      check(false, "data: no file '{}'", path);
      break;
    case io::PathKind::pipe: {
      auto all = std::make_shared<const std::string>(io::read_pipe(path));
      bytes = static_cast<std::int64_t>(all->size());
      s.data_ = reinterpret_cast<const unsigned char*>(all->data());
      std::memcpy(header, s.data_, std::min(all->size(), sizeof header));
      s.owner_ = std::move(all);
      break;
    }
    default:
      s.file_ = std::make_shared<const io::InputFile>(path);
      bytes = s.file_->size();
      s.file_->read(0, header, std::min<std::int64_t>(bytes, sizeof header));
  }
  check(bytes > 0, "data: '{}' is empty", path);
  check(header[0] != kMagicEval,
        "data: '{}' has magic {}, which Weft does not read; expected {} or raw uint16 tokens", path,
        header[0], kMagic);
  const bool is_wide = header[0] == kMagicLlama3;
  if (header[0] != kMagic && !is_wide) {
    check(bytes % 2 == 0, "data: '{}' must hold uint16 tokens, but has an odd size of {} bytes",
          path, bytes);
    s.size_ = bytes / 2;
    return s;
  }
  check(!is_wide || s.file_, "data: '{}' has tokens of 32 bits, which need a file, not a pipe",
        path);
  const std::int32_t version = is_wide ? kVersionLlama3 : kVersion;
  s.width_ = is_wide ? 4 : 2;
  check(bytes >= kHeaderBytes, "data: '{}' must have a header of 1024 bytes, got {}", path, bytes);
  check(header[1] == version, "data: '{}' must have version {}, got {}", path, version, header[1]);
  const std::int64_t tokens = header[2], wanted = kHeaderBytes + s.width_ * tokens;
  check(tokens >= 0 && bytes == wanted,
        "data: '{}' must have {} bytes for the {} tokens of its header, got {}", path, wanted,
        tokens, bytes);
  s.size_ = bytes / s.width_;
  s = s.slice(kHeaderBytes / s.width_, tokens);
  s.before_ = 0;
  return s;
}

void write_token_file(const std::string& path, std::span<const std::int32_t> tokens) {
  check(tokens.size() <= INT32_MAX, "write_token_file: a file takes at most {} tokens, got {}",
        INT32_MAX, tokens.size());
  std::int32_t header[kHeaderInts] = {kMagic, kVersion, static_cast<std::int32_t>(tokens.size())};
  std::vector<std::uint16_t> narrow;
  narrow.reserve(tokens.size());
  for (const std::int32_t t : tokens) {
    check(t >= 0 && t <= UINT16_MAX, "write_token_file: a token must be in [0, 65536), got {}", t);
    narrow.push_back(static_cast<std::uint16_t>(t));
  }
  io::AtomicFile file(path);
  file.write(header, sizeof header);
  file.write(narrow.data(), 2 * narrow.size());
  file.commit();
}

std::int32_t check_vocab(const TokenStream& tokens, std::int64_t vocab) {
  const std::int32_t highest = tokens.max_token();
  check(highest < vocab, "data: token {} does not fit a vocabulary of {}; use --vocab {} or more",
        highest, vocab, highest + 1);
  return highest;
}

}  // namespace weft::data
