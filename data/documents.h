#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "weft/data/token_file.h"

namespace weft::data {

/// Calls f with the number of tokens up to the end of each document of a stream, ascending; the
/// last one is tokens.size(). Stops when f returns false. A document ends with the tokens `end`,
/// which are part of it, or where the .idx files of the stream say if `end` is empty.
/// Throws Error without `end` unless tokens.has_documents().
void each_document_end(const TokenStream& tokens, std::span<const std::int32_t> end,
                       const std::function<bool(std::int64_t)>& f);

/// (training part, held-out part): split_tokens() at the end of a document: the first one at or
/// after that token if a document follows it, else the last one before. One document is cut.
/// Throws Error unless 0 <= fraction < 1.
std::pair<TokenStream, TokenStream> split_documents(const TokenStream& tokens, double fraction,
                                                    std::span<const std::int32_t> end);

}  // namespace weft::data
