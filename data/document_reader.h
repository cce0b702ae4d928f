#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/io/byte_reader.h"

namespace weft::data {

/// The files below each folder of a list, in path order, and the other paths as they are. Names
/// that begin with a dot are left out. Throws Error when there is no such path, and for a folder
/// without files.
std::vector<std::string> files_below(const std::vector<std::string>& paths);

/// Whether the name is that of a file with an object in each line: .jsonl, .ndjson or .json, also
/// compressed.
bool holds_objects(std::string_view path);
/// Throws Error that begins with `flag` if one of the files holds objects, where plain text is
/// read.
void check_holds_text(const char* flag, const std::vector<std::string>& paths);
/// Whether a line holds nothing but white space, as between the lines of objects.
bool is_blank(std::string_view line);

/// Reads the documents of text files one after the other, in bounded memory. Files may be
/// compressed (io::ByteReader). In a .jsonl, .ndjson or .json file each line is an object with a
/// document in one member; any other file is a text.
///
///   data::DocumentReader reader(data::files_below({"corpus"}), {});
///   while (const auto piece = reader.next()) use(piece->text, piece->ends_document);
class DocumentReader {
 public:
  struct Options {
    std::string field = "text";  ///< the member of an object that holds the document
    std::string split = {};  ///< ends a document of a text, without being part of it; empty: the
                             ///< end of the file does
    std::int64_t piece_bytes =
        1 << 24;                        ///< longer documents of a text come in pieces of about this
    std::int64_t line_bytes = 1 << 28;  ///< of the longest line with an object
  };
  struct Piece {
    std::string text;
    bool ends_document = true;
  };

  /// Throws Error on the name of a token file.
  DocumentReader(std::vector<std::string> files, Options options);
  /// The next document, or a piece of a long one, cut behind a line break where there is one; empty
  /// after the last. Documents without text are skipped.
  /// Throws Error that names the file and the line on one without such a member.
  std::optional<Piece> next();

  /// Bytes of the files themselves: in all, and read so far.
  std::int64_t file_bytes() const { return file_bytes_; }
  std::int64_t file_bytes_read() const;

 private:
  bool fill();
  std::optional<Piece> next_line();
  std::optional<Piece> next_text();
  Piece take(std::size_t bytes, std::size_t left_out, bool ends_document);

  std::vector<std::string> files_;
  Options options_;
  std::int64_t file_bytes_ = 0, bytes_before_ = 0;
  std::size_t file_ = 0;
  std::optional<io::ByteReader> reader_;
  bool at_end_ = false;
  std::string buffer_;
  std::size_t at_ = 0;     ///< in the buffer
  std::int64_t line_ = 0;  ///< of the file, from 1
  bool goes_on_ = false;   ///< whether the latest piece did not end its document
};

}  // namespace weft::data
