#pragma once
#include <cstdint>
#include <optional>

#include "weft/core/tensor.h"

namespace weft::nn {

/// The part of a batch's tokens, all sequences one after another, that this rank works on.
struct TokenPart {
  std::int64_t sequences = 0, tokens = 0;  ///< of the whole batch, and of each sequence
  std::int64_t first = 0, count = 0;       ///< which of the sequences * tokens are here

  /// Is x (1, count, dim), as layers see such a part?
  bool is_part(const Tensor& x) const {
    return x.ndim() == 3 && x.dim(0) == 1 && x.dim(1) == count;
  }
};

/// Tells the layers that are called on this thread until the end of the scope that their tokens are
/// a part of the batch: attention how many sequences it will have gathered, dropout where in the
/// whole its tokens are. Without a part nothing changes.
class TokenScope {
 public:
  explicit TokenScope(const std::optional<TokenPart>& part) : part_(part), previous_(current_) {
    if (part_) current_ = &*part_;
  }
  ~TokenScope() { current_ = previous_; }
  TokenScope(const TokenScope&) = delete;

  /// The innermost scope's part, or null.
  static const TokenPart* current() { return current_; }
  const std::optional<TokenPart>& part() const { return part_; }

 private:
  std::optional<TokenPart> part_;
  const TokenPart* previous_;
  static inline constinit thread_local const TokenPart* current_ = nullptr;
};

}  // namespace weft::nn
