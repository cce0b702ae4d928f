#pragma once
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

#include "weft/autograd/backward.h"

namespace weft {

namespace detail {

/// A function in memory of its own: backward allocates nothing.
struct DelayedGradient {
  static constexpr std::size_t kBytes = 512;

  DelayedGradient() = default;
  DelayedGradient(const DelayedGradient&) = delete;
  ~DelayedGradient() { clear(); }
  template <class F>
  void set(F&& compute, int input) {
    static_assert(sizeof(F) <= kBytes && alignof(F) <= alignof(std::max_align_t));
    clear();
    new (bytes_) F(std::forward<F>(compute));
    input_ = input;
    invoke_ = [](void* f, Backward& b, int i) { (*static_cast<F*>(f))(b, i); };
    destroy_ = [](void* f) { static_cast<F*>(f)->~F(); };
  }
  void run(Backward& b) {
    invoke_(bytes_, b, input_);
    clear();
  }
  void clear() {
    if (const auto destroy = std::exchange(destroy_, nullptr)) destroy(bytes_);
  }

 private:
  alignas(std::max_align_t) std::byte bytes_[kBytes];
  int input_ = 0;
  void (*invoke_)(void* f, Backward& b, int input) = nullptr;
  void (*destroy_)(void* f) = nullptr;
};

}  // namespace detail

/// A place of the recording where backward computes gradients of weights that ops after it use.
/// Those ops compute the gradients of their inputs at once, so that work which needs these, such as
/// a transfer to other ranks, starts earlier. Which numbers are multiplied and added does not
/// change; the operands live until backward comes to the place.
///
///   send_tokens(x, path, transfer);                           // in backward: waits for dx
///   const auto later = DelayedGradients::here({&weight});     // computes dweight
///   x = receive_tokens(transfer);                             // sends dx
///   y = grouped_linear(x, weight, {}, rows, {}, later);       // computes dx
///
/// A default object delays nothing.
class DelayedGradients {
  struct Queue;

 public:
  static constexpr int kMost = 4;  ///< weights of a place, and uses of them
  DelayedGradients() = default;
  /// Records the place for these weights, if a tape follows one of them.
  /// Throws   Error if there are more than kMost weights.
  static DelayedGradients here(const TensorRefs& weights);

  /// Where the gradient of one weight is computed. An op's backward has it as a copy.
  class Place {
   public:
    Place() = default;
    /// Calls compute(b, input), which gives the gradient of that input to b: at the place, with the
    /// Backward and the input there, or else now.
    /// Throws   Error if the weights of the place are used more than kMost times.
    template <class F>
    void run(Backward& b, int input, F compute) const {
      if (queue_)
        next_job().set(std::move(compute), input_);
      else
        compute(b, input);
    }

   private:
    friend class DelayedGradients;
    detail::DelayedGradient& next_job() const;
    std::shared_ptr<Queue> queue_;
    int input_ = 0;
  };
  /// Delays nothing if the place is not for this weight.
  Place place_of(const Tensor& weight) const;

 private:
  std::shared_ptr<Queue> queue_;
};

}  // namespace weft
