#include "weft/data/packed_documents.h"

#include <algorithm>

#include "weft/autograd/indexing.h"
#include "weft/core/error.h"
#include "weft/data/packing.h"

namespace weft::data {
namespace {

std::vector<std::vector<std::int32_t>> split(const TokenStream& tokens,
                                             std::span<const std::int32_t> end) {
  check(!end.empty(),
        "packed documents: the end of a document must have at least 1 token, got none");
  std::vector<std::int32_t> all(static_cast<std::size_t>(tokens.size()));
  tokens.read(0, all);
  std::vector<std::vector<std::int32_t>> documents;
  for (auto from = all.begin(); from != all.end();) {
    auto to = std::search(from, all.end(), end.begin(), end.end());
    if (to != all.end()) to += std::ssize(end);
    documents.emplace_back(from, to);
    from = to;
  }
  return documents;
}

}  // namespace

PackedDocuments::PackedDocuments(const TokenStream& tokens, std::int64_t seq,
                                 std::span<const std::int32_t> end)
    : tokens_(tokens.size()) {
  const std::vector<std::vector<std::int32_t>> documents = split(tokens, end);
  documents_ = std::ssize(documents);
  check(std::any_of(documents.begin(), documents.end(), [](const auto& d) { return d.size() > 1; }),
        "packed documents: the data must have a document of at least 2 tokens, got {} tokens in {}",
        tokens_, documents_);
  const PackedRows rows = pack_documents(documents, seq);
  all_ = {rows.tokens, rows.targets, rows.positions};
  for (std::int64_t r = 0; r < rows.rows(); ++r) {
    const std::int64_t filled = rows.filled[static_cast<std::size_t>(r)];
    all_.positions.select(0, r).narrow(0, filled, seq - filled).fill_(-1);
  }
}

Batch PackedDocuments::rows(std::span<const std::int64_t> numbers) const {
  const Tensor picked = Tensor::from(numbers, {static_cast<std::int64_t>(numbers.size())});
  const auto pick = [&](const Tensor& t) { return index_select(t, 0, picked); };
  return {pick(all_.inputs), pick(all_.targets), pick(all_.positions)};
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
  return nn::Packing::of(boundaries, longest, device, is_padding);
}

}  // namespace weft::data
