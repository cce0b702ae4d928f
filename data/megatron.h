#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "weft/io/file.h"

// Megatron's format of token files: x.bin holds the tokens, one after the other, and x.idx says how
// wide they are and where sequences and documents end.
//
//   bytes   x.idx, little-endian
//   9       "MMIDIDX\0\0"
//   8       version, 1
//   1       type: 1 uint8, 8 uint16, 4 int32 (others are not read)
//   8, 8    number of sequences S, number of document entries D
//   4 S     tokens of each sequence
//   8 S     byte of x.bin at which it begins
//   8 D     for each document the number of its first sequence, then S
//   S       optional: a mode for each sequence (not read)
// Source: megatron/core/datasets/indexed_dataset.py of Megatron-LM.
namespace weft::data {

/// An x.idx file. Keeps the file open and nothing in memory, however many documents it lists.
class MegatronIndex {
 public:
  /// Reads all of it once, in pieces. `bin_bytes` is the size of x.bin.
  /// Throws Error unless the numbers agree with the sizes of both files, with at least one token,
  /// and every sequence begins where the one before ends.
  MegatronIndex(const std::string& idx, std::int64_t bin_bytes);

  std::int64_t tokens() const { return tokens_; }
  std::int64_t documents() const { return entries_ - 1; }
  int width() const { return width_; }  ///< bytes per token: 1, 2 or 4
  /// Calls f with the number of tokens up to the end of each document, ascending, until f returns
  /// false. Empty documents repeat a number.
  void each_document_end(const std::function<bool(std::int64_t)>& f) const;

 private:
  void check_sequences(std::int64_t bin_bytes);
  void check_documents() const;

  io::InputFile file_;
  std::int64_t tokens_ = 0, sequences_ = 0, entries_ = 0;
  int width_ = 2;
};

/// Writes x.bin and x.idx document by document. The files have their names once commit() has
/// returned; until then x.bin.part, x.lengths.part and x.documents.part grow.
///
///   data::MegatronWriter out("train", data::MegatronWriter::width_for(vocab));
///   for (const std::string& text : texts) out.add(tokenizer->encode(text));
///   out.commit();
class MegatronWriter {
 public:
  /// How much has been written.
  struct Position {
    std::int64_t tokens = 0, sequences = 0, documents = 0;
    bool operator==(const Position&) const = default;
  };
  /// Bytes per token for a vocabulary: 2 up to 65,536 tokens, else 4.
  static int width_for(std::int64_t vocab) { return vocab <= 1 << 16 ? 2 : 4; }

  /// Writes `stem`.bin and `stem`.idx, from the beginning, or from a position that sync() returned:
  /// what was written after it is dropped.
  /// Throws Error unless width is 2 or 4, and when the parts are shorter than the position says.
  MegatronWriter(std::string stem, int width, std::optional<Position> from = {});

  /// A sequence, which ends a document unless more of it follows.
  /// Throws Error on a token that does not fit, and on 2^31 tokens or more.
  void add(std::span<const std::int32_t> tokens, bool ends_document = true);
  const Position& position() const { return at_; }
  /// Makes everything written so far durable.
  const Position& sync();
  /// Completes the files. A document that has begun is ended.
  void commit();

 private:
  std::string part(const char* name) const { return stem_ + "." + name + ".part"; }
  void flush();

  std::string stem_;
  int width_;
  Position at_;
  std::int64_t documented_ = 0;            ///< sequences of complete documents
  std::string bin_, lengths_, documents_;  ///< not yet written
};

}  // namespace weft::data
