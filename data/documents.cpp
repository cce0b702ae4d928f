#include "weft/data/documents.h"

#include <algorithm>
#include <vector>

#include "weft/data/token_windows.h"

namespace weft::data {

void each_document_end(const TokenStream& tokens, std::span<const std::int32_t> end,
                       const std::function<bool(std::int64_t)>& f) {
  if (end.empty()) return tokens.each_document_end(f);
  constexpr std::int64_t kPiece = 1 << 16;
  std::vector<std::int32_t> piece;  // tokens [first, read), of which a match may still begin with
  std::int64_t first = 0, read = 0, last = 0;
  while (read < tokens.size()) {
    const auto kept = piece.size();
    piece.resize(kept + static_cast<std::size_t>(std::min(kPiece, tokens.size() - read)));
    tokens.read(read, std::span(piece).subspan(kept));
    read = first + std::ssize(piece);
    auto from = piece.begin();
    for (;;) {
      const auto at = std::search(from, piece.end(), end.begin(), end.end());
      if (at == piece.end()) break;
      from = at + std::ssize(end);
      last = first + (from - piece.begin());
      if (!f(last)) return;
    }
    from = std::max(from, piece.end() - std::min(std::ssize(piece), std::ssize(end) - 1));
    first += from - piece.begin();
    piece.erase(piece.begin(), from);
  }
  if (last < tokens.size()) f(tokens.size());
}

std::pair<TokenStream, TokenStream> split_documents(const TokenStream& tokens, double fraction,
                                                    std::span<const std::int32_t> end) {
  const std::int64_t size = tokens.size(), wanted = size - held_out_size(size, fraction);
  std::int64_t cut = 0;
  if (wanted < size)
    each_document_end(tokens, end, [&](std::int64_t e) {
      if (e < size) cut = e;
      return e < wanted;
    });
  if (cut == 0) cut = wanted;
  return {tokens.slice(0, cut), tokens.slice(cut, size - cut)};
}

}  // namespace weft::data
