#include "weft/data/packed_documents.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "weft/core/error.h"
#include "weft/data/documents.h"

namespace weft::data {
namespace {

std::vector<std::int64_t> ends_of(const TokenStream& tokens, std::span<const std::int32_t> end) {
  check(!end.empty() || tokens.has_documents(),
        "packed documents: the end of a document must have at least 1 token, got none");
  std::vector<std::int64_t> ends;
  each_document_end(tokens, end, [&](std::int64_t e) {
    ends.push_back(e);
    return true;
  });
  std::int64_t begin = 0, longest = 0;
  for (const std::int64_t e : ends) longest = std::max(longest, e - std::exchange(begin, e));
  check(longest > 1,
        "packed documents: the data must have a document of at least 2 tokens, got {} tokens in {}",
        tokens.size(), ends.size());
  return ends;
}

}  // namespace

PackedDocuments::PackedDocuments(TokenStream tokens, std::int64_t seq,
                                 std::span<const std::int32_t> end)
    : tokens_(std::move(tokens)), plan_([&] {
        const std::vector<std::int64_t> ends = ends_of(tokens_, end);
        documents_ = std::ssize(ends);
        return PackingPlan(ends, seq);
      }()) {}

PackedDocuments::PackedDocuments(TokenStream tokens, std::int64_t seq,
                                 std::span<const std::int64_t> ends,
                                 std::vector<std::uint8_t> counts)
    : tokens_(std::move(tokens)),
      documents_(std::ssize(ends)),
      plan_(ends, seq),
      counts_(std::move(counts)) {
  check(std::ssize(counts_) == tokens_.size(),
        "packed documents: each of the {} tokens must be marked, got {} marks", tokens_.size(),
        counts_.size());
  check(std::any_of(counts_.begin(), counts_.end(), [](std::uint8_t c) { return c != 0; }),
        "packed documents: at least 1 token must count, got none of {}", tokens_.size());
}

Batch PackedDocuments::rows(std::span<const std::int64_t> numbers) const {
  const std::int64_t seq = plan_.seq();
  const Shape shape{std::ssize(numbers), seq};
  Batch out{Tensor::full(shape, 0, DType::i32), Tensor::full(shape, kIgnore, DType::i32),
            Tensor::full(shape, -1, DType::i32)};
  std::vector<std::int32_t> piece_tokens;
  std::int64_t row = 0;
  for (const std::int64_t number : numbers) {
    check(0 <= number && number < size(), "packed documents: a row must be in [0, {}), got {}",
          size(), number);
    std::int64_t at = seq * row++;
    for (const PackedPiece& piece : plan_.row(number)) {
      const std::int32_t targets = piece.length - (piece.goes_on ? 0 : 1);
      piece_tokens.resize(static_cast<std::size_t>(targets) + 1);
      tokens_.read(piece.first, piece_tokens);
      std::copy_n(piece_tokens.begin(), piece.length, out.inputs.data<std::int32_t>() + at);
      for (std::int32_t i = 0; i < targets; ++i)
        if (counts_.empty() || counts_[static_cast<std::size_t>(piece.first + i + 1)])
          out.targets.data<std::int32_t>()[at + i] = piece_tokens[static_cast<std::size_t>(i) + 1];
      auto* const positions = out.positions.data<std::int32_t>() + at;
      std::iota(positions, positions + piece.length, 0);
      at += piece.length;
    }
  }
  return out;
}

void PackedDocuments::will_read(std::span<const std::int64_t> numbers) const {
  for (const std::int64_t number : numbers)
    for (const PackedPiece& piece : plan_.row(number)) tokens_.will_read(piece.first, piece.length);
}

nn::Packing packing_of(const Batch& batch, std::int64_t longest, Device device) {
  const Tensor positions = batch.positions.contiguous();
  const std::int64_t seq = positions.dim(1);
  const std::int32_t* const at = positions.data<std::int32_t>();
  std::vector<std::int32_t> boundaries = {0};
  std::vector<std::uint8_t> is_padding;
  for (std::int64_t i = 0; i < positions.numel(); ++i) {
    const bool begins = i % seq == 0 || at[i] == 0 || (at[i] < 0 && at[i - 1] >= 0);
    if (begins && i > 0) boundaries.push_back(static_cast<std::int32_t>(i));
    if (begins) is_padding.push_back(at[i] < 0);
  }
  boundaries.push_back(static_cast<std::int32_t>(positions.numel()));
  nn::Packing out = nn::Packing::of(boundaries, longest, device, is_padding);
  out.rows = batch.rows();
  return out;
}

}  // namespace weft::data
