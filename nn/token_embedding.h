#pragma once
#include "weft/nn/embedding.h"
#include "weft/nn/token_context.h"

namespace weft::nn {

/// What goes into the first block: the embedding of each token, and that of its position where
/// positions are learned (null: they are not). Tokens follow those in the cache of the context.
/// `ahead`: each of them is that many places later than its own, as for a depth of multi-token
/// prediction; what then lies beyond `seq` has no position.
///
/// Shapes  ids (B, T)  ->  (B, T, dim)
/// Throws  Error on ids of another shape, and on more than `seq` tokens in a sequence
Tensor embed_tokens(const Embedding& embed, const Embedding* positions, const Tensor& ids,
                    const TokenContext& context, std::int64_t seq, std::int64_t ahead = 0);

}  // namespace weft::nn
