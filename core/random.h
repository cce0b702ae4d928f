#pragma once
#include <span>
#include <string_view>

#include "weft/core/philox.h"
#include "weft/core/tensor.h"

namespace weft {

/// A stream number for a name ("blocks.3.attn.qkv.weight"); equal names give equal streams.
std::uint64_t stream_of(std::string_view name);

/// Seeds the counter of this thread from which unkeyed draws (`rand_normal(shape)`) take their
/// streams. The thread's draws then depend on the seed and on its own earlier draws only. Threads
/// that have never called it restart too, with the same seed and separate streams, numbered in the
/// order of their first draws; no two threads draw the same numbers. The initial seed is 0, with
/// the main thread seeded.
void manual_seed(std::uint64_t seed);
/// The next key of this thread's counter.
/// Throws Error during the capture of a cuda::Graph, which would draw the same numbers in every
/// replay.
RandomKey next_random_key();

/// Keys the draws of dropout and jitter in a training step. Thread-local; scopes nest.
struct RandomState {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint64_t micro_batch = 0;
  std::uint64_t first_global_row = 0;  ///< index of this rank's first sequence in the global batch
  std::uint64_t seq_offset = 0;        ///< position of this rank's first token in its sequence
  std::uint64_t use = 0;  ///< of layers that a pass runs several times: 0 the first, 1, ...
};

/// Random layers inside the scope draw numbers that depend on these values and the layer's name
/// only: not on the rank, the number of threads, or whether a recompute runs the layer again.
class RandomScope {
 public:
  explicit RandomScope(const RandomState& state);
  ~RandomScope();
  RandomScope(const RandomScope&) = delete;

  /// The innermost scope's state, or null outside any scope.
  static const RandomState* current();
  /// The key of a layer in the current scope; outside any scope, the next key of the thread's
  /// counter. `row_elements` and `token_elements` are the numbers drawn per global row and per
  /// token.
  static RandomKey key_for(std::uint64_t layer_stream, std::uint64_t row_elements,
                           std::uint64_t token_elements);
  /// The stream of such a key.
  static std::uint64_t stream_for(std::uint64_t layer_stream, std::uint64_t step,
                                  std::uint64_t micro_batch);

 private:
  RandomState state_;
  const RandomState* previous_;
};

/// The full random state of this thread. Replaying code under it draws the same numbers again.
struct RandomSnapshot {
  bool scoped = false;
  RandomState state;
  std::uint64_t seed = 0, calls = 0;
  static RandomSnapshot take();
};

/// Restores the state of the snapshot until the end of the scope; the draws after the scope
/// continue as if it had not existed.
class RandomReplay {
 public:
  explicit RandomReplay(const RandomSnapshot& snapshot);
  ~RandomReplay();
  RandomReplay(const RandomReplay&) = delete;

 private:
  RandomState state_;
  const RandomState* previous_;
  std::uint64_t seed_, calls_, epoch_;
};

// In-place draws into a contiguous tensor. Element i depends on (seed, stream, first + i) only.
// Numbers are computed in double and rounded to the tensor's dtype, to an integer toward 0;
// rounding may move one just over a bound that the dtype cannot represent. A GPU draws the same
// numbers, except for the last digits of normal_(). All throw Error on a tensor that is part of a
// recording.

/// Uniform in [low, high), with 24 random bits each. In a floating-point dtype that has a number in
/// [low, high) none is rounded to high.
const Tensor& uniform_(const Tensor& t, const RandomKey& key, double low = 0, double high = 1);
/// Normal by Box-Muller: two neighbouring elements share two uniform numbers.
const Tensor& normal_(const Tensor& t, const RandomKey& key, double mean = 0, double std = 1);
/// Normal truncated to [low, high], by inverting the distribution function.
/// Throws Error unless low < high and std > 0.
const Tensor& truncated_normal_(const Tensor& t, const RandomKey& key, double mean, double std,
                                double low, double high);
/// 1 with probability p, else 0; any dtype.
const Tensor& bernoulli_(const Tensor& t, const RandomKey& key, double p);

Tensor rand_uniform(const Shape& shape, double low = 0, double high = 1, DType dtype = DType::f32);
Tensor rand_normal(const Shape& shape, double mean = 0, double std = 1, DType dtype = DType::f32);
// The short names draw from the counter of the thread, like the two above: manual_seed() restarts
// it, and next_random_key() is the key that one of them would use. On the CPU; to() moves the
// result.
/// Uniform in [0, 1), standard normal, and whole numbers in [low, high), i64.
Tensor rand(const Shape& shape, DType dtype = DType::f32);
Tensor randn(const Shape& shape, DType dtype = DType::f32);
/// Throws Error unless low < high.
Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape);
/// permutation() without a key.
Tensor randperm(std::int64_t n);
/// The numbers 0 .. n-1 in random order, i64.
Tensor permutation(std::int64_t n, const RandomKey& key);
/// As permutation(), into the caller's memory.
void permute_range(std::span<std::int64_t> out, const RandomKey& key);
/// `count` draws with replacement from each row of weights (rows, n), which need not sum to 1.
/// Result (rows, count), i64, on the weights' device; (n) gives (count). The host draws, so that
/// weights on a GPU are waited for.
/// Throws Error on a negative or non-finite weight, or a row that sums to 0.
Tensor multinomial(const Tensor& weights, std::int64_t count, const RandomKey& key);

}  // namespace weft
