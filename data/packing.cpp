#include "weft/data/packing.h"

#include <algorithm>
#include <bit>
#include <numeric>
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
        room_(2 * leaves_, static_cast<std::int32_t>(seq)) {}

  /// Takes `length` tokens from the first row that has as many free. Such a row always exists,
  /// since there are as many rows as pieces.
  std::size_t take(std::int32_t length) {
    std::size_t node = 1;
    while (node < leaves_) node = 2 * node + (room_[2 * node] < length ? 1 : 0);
    const std::size_t row = node - leaves_;
    room_[node] -= length;
    while (node /= 2) room_[node] = std::max(room_[2 * node], room_[2 * node + 1]);
    return row;
  }

 private:
  std::size_t leaves_;
  std::vector<std::int32_t> room_;
};

Tensor filled(std::int64_t rows, std::int64_t seq, std::int32_t value) {
  Tensor t = Tensor::empty({rows, seq}, DType::i32);
  std::fill_n(t.data<std::int32_t>(), rows * seq, value);
  return t;
}

}  // namespace

PackingPlan::PackingPlan(std::span<const std::int64_t> ends, std::int64_t seq) : seq_(seq) {
  check(seq >= 1 && seq <= INT32_MAX, "pack_documents: seq must be at least 1, got {}", seq);
  std::vector<PackedPiece> pieces;
  std::int64_t begin = 0;
  for (const std::int64_t end : ends) {
    for (; begin < end; begin += pieces.back().length) {
      const auto length = static_cast<std::int32_t>(std::min(seq, end - begin));
      pieces.push_back({begin, length, begin + length < end});
    }
  }
  FirstFit fit(std::ssize(pieces), seq);
  std::vector<std::size_t> rows;  // of each piece
  first_piece_ = {0};
  for (const PackedPiece& piece : pieces) {
    rows.push_back(fit.take(piece.length));
    if (rows.back() + 1 == first_piece_.size()) first_piece_.push_back(0);
    ++first_piece_[rows.back() + 1];
  }
  std::partial_sum(first_piece_.begin(), first_piece_.end(), first_piece_.begin());
  pieces_.resize(pieces.size());
  std::vector<std::int64_t> next(first_piece_.begin(), first_piece_.end() - 1);
  for (std::size_t i = 0; i < pieces.size(); ++i)
    pieces_[static_cast<std::size_t>(next[rows[i]]++)] = pieces[i];
}

std::span<const PackedPiece> PackingPlan::row(std::int64_t i) const {
  const auto at = static_cast<std::size_t>(i);
  return std::span(pieces_).subspan(
      static_cast<std::size_t>(first_piece_[at]),
      static_cast<std::size_t>(first_piece_[at + 1] - first_piece_[at]));
}

PackedRows pack_documents(const std::vector<std::vector<std::int32_t>>& documents,
                          std::int64_t seq) {
  std::vector<std::int32_t> all;
  std::vector<std::int64_t> ends;
  for (const auto& document : documents) {
    all.insert(all.end(), document.begin(), document.end());
    ends.push_back(std::ssize(all));
  }
  const PackingPlan plan(ends, seq);
  const std::int64_t count = plan.rows();
  PackedRows out{filled(count, seq, 0), filled(count, seq, kIgnore), filled(count, seq, 0), {}, {}};
  auto* tokens = out.tokens.data<std::int32_t>();
  auto* targets = out.targets.data<std::int32_t>();
  auto* positions = out.positions.data<std::int32_t>();
  for (std::int64_t r = 0; r < count; ++r) {
    auto& bounds = out.cu_seqlens.emplace_back(1, 0);
    std::int64_t at = r * seq;
    for (const PackedPiece& piece : plan.row(r)) {
      for (std::int32_t i = 0; i < piece.length; ++i, ++at) {
        const auto source = static_cast<std::size_t>(piece.first + i);
        tokens[at] = all[source];
        if (i + 1 < piece.length || piece.goes_on) targets[at] = all[source + 1];
        positions[at] = i;
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
  nn::Packing out = nn::Packing::of(boundaries, tokens.dim(1), device, is_padding);
  out.rows = std::max<std::int64_t>(count, 1);
  return out;
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
