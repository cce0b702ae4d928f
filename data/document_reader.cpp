#include "weft/data/document_reader.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "weft/core/error.h"
#include "weft/data/token_file.h"
#include "weft/io/file.h"
#include "weft/io/json.h"
#include "weft/tokenizer/utf8.h"

namespace weft::data {
namespace {

constexpr std::size_t kFillBytes = 1 << 18;

void list_files(const std::string& folder, std::vector<std::string>& out) {
  for (const std::string& name : io::list_directory(folder)) {
    if (name.starts_with('.')) continue;
    const std::string path = folder + "/" + name;
    if (io::is_directory(path))
      list_files(path, out);
    else
      out.push_back(path);
  }
}

}  // namespace

bool holds_objects(std::string_view path) {
  for (const std::string_view packed : {".gz", ".zst"})
    if (path.ends_with(packed)) path.remove_suffix(packed.size());
  return path.ends_with(".jsonl") || path.ends_with(".ndjson") || path.ends_with(".json");
}

void check_holds_text(const char* flag, const std::vector<std::string>& paths) {
  for (const std::string& path : paths)
    check(!holds_objects(path), "{}: '{}' holds objects; make a token file of it with tokenize",
          flag, path);
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

std::vector<std::string> files_below(const std::vector<std::string>& paths) {
  std::vector<std::string> out;
  for (const std::string& path : paths) {
    const io::PathKind kind = io::path_kind(path);
    check(kind != io::PathKind::none, "data: no file '{}'", path);
    if (kind != io::PathKind::folder) {
      out.push_back(path);
      continue;
    }
    const std::size_t before = out.size();
    list_files(path, out);
    check(out.size() > before, "data: the folder '{}' holds no files", path);
  }
  return out;
}

DocumentReader::DocumentReader(std::vector<std::string> files, Options options)
    : files_(std::move(files)), options_(std::move(options)) {
  for (const std::string& path : files_) check_is_text(path);
  for (const std::string& path : files_) file_bytes_ += io::file_size(path);
}

std::int64_t DocumentReader::file_bytes_read() const {
  return bytes_before_ + (reader_ ? reader_->file_bytes_read() : 0);
}

std::optional<DocumentReader::Piece> DocumentReader::next() {
  for (;;) {
    if (!reader_) {
      if (file_ == files_.size()) return {};
      reader_.emplace(files_[file_]);
      at_end_ = goes_on_ = false;
      line_ = 0;
    }
    if (auto piece = holds_objects(files_[file_]) ? next_line() : next_text()) return piece;
    bytes_before_ += reader_->file_bytes();
    reader_.reset();
    buffer_.clear();
    at_ = 0;
    ++file_;
  }
}

/// Reads more of the file behind what is left in the buffer. Returns false at the end.
bool DocumentReader::fill() {
  if (at_end_) return false;
  buffer_.erase(0, std::exchange(at_, 0));
  const std::size_t before = buffer_.size();
  buffer_.resize(before + kFillBytes);
  buffer_.resize(before + reader_->read(buffer_.data() + before, kFillBytes));
  at_end_ = buffer_.size() < before + kFillBytes;
  return buffer_.size() > before;
}

DocumentReader::Piece DocumentReader::take(std::size_t bytes, std::size_t left_out,
                                           bool ends_document) {
  Piece piece{buffer_.substr(at_, bytes), ends_document};
  at_ += bytes + left_out;
  goes_on_ = !ends_document;
  return piece;
}

std::optional<DocumentReader::Piece> DocumentReader::next_line() {
  for (;;) {
    std::size_t searched = 0, end;
    while ((end = buffer_.find('\n', at_ + searched)) == buffer_.npos) {
      searched = buffer_.size() - at_;
      check(static_cast<std::int64_t>(searched) <= options_.line_bytes,
            "data: '{}' must have lines of at most {} bytes, but line {} is longer", files_[file_],
            options_.line_bytes, line_ + 1);
      if (!fill()) break;
    }
    if (end == buffer_.npos) end = buffer_.size();
    if (at_ >= buffer_.size()) return {};
    const std::string_view line = std::string_view(buffer_).substr(at_, end - at_);
    at_ = std::min(end + 1, buffer_.size());
    ++line_;
    if (is_blank(line)) continue;
    const std::string where = message("'{}', line {}", files_[file_], line_);
    std::string text;
    try {
      const io::Json object = io::Json::parse(line, "data: " + where);
      const io::Json* const found = object.find(options_.field);
      check(found && found->is_string(), "data: {} must have a text in the member '{}'", where,
            options_.field);
      text = found->as_string();
    } catch (const Error& e) {
      throw Error(e.what(), Fault::user);
    }
    if (!text.empty()) return Piece{std::move(text), true};
  }
}

std::optional<DocumentReader::Piece> DocumentReader::next_text() {
  const std::string& split = options_.split;
  const auto most = static_cast<std::size_t>(options_.piece_bytes);
  for (std::size_t searched = 0;;) {
    const std::size_t here = buffer_.size() - at_;
    if (!split.empty()) {
      const std::size_t end = buffer_.find(split, at_ + searched);
      if (end != buffer_.npos) {
        const bool continues = goes_on_;
        Piece piece = take(end - at_, split.size(), true);
        searched = 0;
        if (!piece.text.empty() || continues) return piece;
        continue;
      }
      searched = here < split.size() ? 0 : here - split.size() + 1;
    }
    if (here > most + split.size()) {
      std::string_view head = std::string_view(buffer_).substr(at_, most);
      const std::size_t line = head.rfind('\n');
      std::size_t cut = line == head.npos ? most - tokenizer::incomplete_utf8(head) : line + 1;
      if (cut == 0) cut = most;
      return take(cut, 0, false);
    }
    if (fill()) continue;
    if (here == 0 && !goes_on_) return {};
    return take(here, 0, true);
  }
}

}  // namespace weft::data
