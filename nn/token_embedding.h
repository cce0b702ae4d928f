#pragma once
#include <functional>

#include "weft/nn/embedding.h"
#include "weft/nn/token_context.h"

namespace weft::nn {

/// The input of the first block: the embedding of each token, plus that of its position if
/// positions are learned (null: they are not). Tokens follow those in the context's cache. `ahead`
/// is added to the positions, as for a depth of multi-token prediction; those beyond `seq` are
/// omitted. `before_use`, if not null, is called with each table right before it is read.
///
/// Shapes  ids (B, T)  ->  (B, T, dim)
/// Throws  Error if ids are not 2-D, and on more than `seq` tokens in a sequence (in a packed row
///         on the CPU alone)
Tensor embed_tokens(const Embedding& embed, const Embedding* positions, const Tensor& ids,
                    const TokenContext& context, std::int64_t seq, std::int64_t ahead = 0,
                    const std::function<void(const Module&)>& before_use = {});

}  // namespace weft::nn
