#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "weft/core/tensor.h"
#include "weft/data/token_file.h"

namespace weft::io {
class Json;
}

namespace weft::data {

/// `inputs` and `targets` are (rows, seq), i32; targets[i][t] is the token after inputs[i][t], or
/// kIgnore where there is none.
struct Batch {
  Tensor inputs;
  Tensor targets;
};

inline constexpr std::int32_t kIgnore = -100;

/// Where a loader stands: the next window in the shuffled order of an epoch. The other fields say
/// what the order belongs to.
struct LoaderState {
  std::int64_t epoch = 0;
  std::int64_t index = 0;
  std::int64_t seed = 0;
  std::int64_t seq = 0;
  std::int64_t tokens = 0;
  bool operator==(const LoaderState&) const = default;
};
io::Json to_json(const LoaderState& state);
LoaderState loader_state_from_json(const io::Json& json);

/// Training batches: each epoch visits every window of seq + 1 tokens (stride seq) once, in an
/// order that depends on (seed, epoch) only. Row i of a global batch is the same for every number
/// of ranks and micro-batches; a batch may straddle two epochs.
class TokenLoader {
 public:
  struct Options {
    std::int64_t batch = 1;  ///< rows of the global batch
    std::int64_t seq = 1;
    std::uint64_t seed = 0;
  };
  /// Throws Error when the data are shorter than one window.
  TokenLoader(TokenStream tokens, const Options& options);

  std::int64_t windows() const { return windows_; }
  std::int64_t batch() const { return options_.batch; }

  /// Rows [first, first + count) of the current global batch.
  Batch rows(std::int64_t first, std::int64_t count);
  /// Goes on to the next global batch.
  void advance();
  /// rows() for the slice of a rank, then advance().
  Batch next(std::int64_t first, std::int64_t count);
  Batch next() { return next(0, options_.batch); }

  /// Have the data been written to since they were opened? rows() then throws Error.
  bool changed() const { return tokens_.changed(); }
  /// Throws Error when they have.
  void check_unchanged() const { tokens_.check_unchanged(); }

  LoaderState state() const;
  /// Throws Error when the state belongs to other data, another seed or sequence length.
  void set_state(const LoaderState& state);

 private:
  /// The window of global row `row`, counted from the current batch.
  std::int64_t window_of(std::int64_t row);

  TokenStream tokens_;
  Options options_;
  std::int64_t windows_ = 0;
  std::int64_t epoch_ = 0, index_ = 0;
  std::int64_t order_epoch_ = -1;  ///< the epoch that order_ belongs to
  std::vector<std::int64_t> order_;
};

/// Evaluation batches over held-out data, in order: every token but the first is a target exactly
/// once. All batches have the same shape; what is left over in the last is padded (target kIgnore).
class EvalLoader {
 public:
  /// Throws Error when there are fewer than 2 tokens.
  EvalLoader(TokenStream tokens, std::int64_t batch, std::int64_t seq);
  std::int64_t batches() const;
  Batch batch(std::int64_t i) const;

 private:
  TokenStream tokens_;
  std::int64_t batch_, seq_;
};

/// (training part, held-out part): the last `fraction` of the tokens is held out.
/// Throws Error unless 0 <= fraction < 1.
std::pair<TokenStream, TokenStream> split_tokens(const TokenStream& tokens, double fraction);

}  // namespace weft::data
