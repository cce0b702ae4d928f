#include "weft/data/packing.h"

#include <algorithm>
#include <bit>
#include <span>

#include "weft/core/error.h"
#include "weft/data/loader.h"

namespace weft::data {
namespace {

/// Free tokens of each row in a tree of maxima, so that finding the first row with enough room
/// takes logarithmic time for millions of documents.
class FirstFit {
 public:
  FirstFit(std::int64_t rows, std::int64_t seq)
      : leaves_(std::bit_ceil(static_cast<std::size_t>(std::max<std::int64_t>(rows, 1)))),
        room_(2 * leaves_, seq) {}

  /// Takes `length` tokens from the first row that has as many free. Such a row always exists,
  /// since there are as many rows as pieces.
  std::size_t take(std::int64_t length) {
    std::size_t node = 1;
    while (node < leaves_) node = 2 * node + (room_[2 * node] < length ? 1 : 0);
    const std::size_t row = node - leaves_;
    room_[node] -= length;
    while (node /= 2) room_[node] = std::max(room_[2 * node], room_[2 * node + 1]);
    return row;
  }

 private:
  std::size_t leaves_;
  std::vector<std::int64_t> room_;
};

struct Piece {
  const std::vector<std::int32_t>* document;
  std::int64_t first, length;
};

Tensor filled(std::int64_t rows, std::int64_t seq, std::int32_t value) {
  Tensor t = Tensor::empty({rows, seq}, DType::i32);
  std::fill_n(t.data<std::int32_t>(), rows * seq, value);
  return t;
}

}  // namespace

PackedRows pack_documents(const std::vector<std::vector<std::int32_t>>& documents,
                          std::int64_t seq) {
  check(seq >= 1, "pack_documents: seq must be at least 1, got {}", seq);
  std::vector<Piece> pieces;
  for (const auto& document : documents) {
    const auto length = static_cast<std::int64_t>(document.size());
    for (std::int64_t at = 0; at < length; at += seq)
      pieces.push_back({&document, at, std::min(seq, length - at)});
  }
  FirstFit fit(static_cast<std::int64_t>(pieces.size()), seq);
  std::vector<std::vector<Piece>> rows;
  for (const Piece& piece : pieces) {
    const std::size_t row = fit.take(piece.length);
    if (row == rows.size()) rows.emplace_back();
    rows[row].push_back(piece);
  }

  const auto count = static_cast<std::int64_t>(rows.size());
  PackedRows out{filled(count, seq, 0), filled(count, seq, kIgnore), filled(count, seq, 0), {}, {}};
  auto* tokens = out.tokens.data<std::int32_t>();
  auto* targets = out.targets.data<std::int32_t>();
  auto* positions = out.positions.data<std::int32_t>();
  for (std::int64_t r = 0; r < count; ++r) {
    auto& bounds = out.cu_seqlens.emplace_back(1, 0);
    std::int64_t at = r * seq;
    for (const Piece& piece : rows[static_cast<std::size_t>(r)]) {
      const auto& document = *piece.document;
      for (std::int64_t i = 0; i < piece.length; ++i, ++at) {
        const auto source = static_cast<std::size_t>(piece.first + i);
        tokens[at] = document[source];
        if (source + 1 < document.size()) targets[at] = document[source + 1];
        positions[at] = static_cast<std::int32_t>(i);
      }
      bounds.push_back(static_cast<std::int32_t>(at - r * seq));
    }
    out.filled.push_back(bounds.back());
    for (std::int32_t i = 0; at < (r + 1) * seq; ++at) positions[at] = i++;
    if (bounds.back() < seq) bounds.push_back(static_cast<std::int32_t>(seq));
  }
  return out;
}

nn::Packing PackedRows::packing(std::int64_t first, std::int64_t count, Device device) const {
  check(static_cast<std::int64_t>(filled.size()) == rows(),
        "packing: filled must have one number for each of the {} rows, got {}", rows(),
        filled.size());
  const Tensor cu = flat_cu_seqlens(first, count);
  const std::span<const std::int32_t> boundaries(cu.data<std::int32_t>(),
                                                 static_cast<std::size_t>(cu.numel()));
  std::vector<std::uint8_t> is_padding;
  for (std::int64_t r = first; r < first + count; ++r) {
    const auto row = static_cast<std::size_t>(r);
    for (std::size_t i = 0; i + 1 < cu_seqlens[row].size(); ++i)
      is_padding.push_back(cu_seqlens[row][i] >= filled[row]);
  }
  return nn::Packing::of(boundaries, tokens.dim(1), device, is_padding);
}

Tensor PackedRows::flat_cu_seqlens(std::int64_t first, std::int64_t count) const {
  check(first >= 0 && count >= 0 && first + count <= rows(),
        "flat_cu_seqlens: rows [{}, {}) must lie in [0, {})", first, first + count, rows());
  check(static_cast<std::int64_t>(cu_seqlens.size()) == rows(),
        "flat_cu_seqlens: cu_seqlens must have one list for each of the {} rows, got {}", rows(),
        cu_seqlens.size());
  const std::int64_t seq = tokens.dim(1);
  std::vector<std::int32_t> bounds = {0};
  for (std::int64_t r = 0; r < count; ++r) {
    const auto& row = cu_seqlens[static_cast<std::size_t>(first + r)];
    for (std::size_t i = 1; i < row.size(); ++i)
      bounds.push_back(static_cast<std::int32_t>(r * seq) + row[i]);
  }
  return Tensor::from<std::int32_t>(bounds, {static_cast<std::int64_t>(bounds.size())});
}

}  // namespace weft::data
