#pragma once
// What the author of an op works with: the tensors that it saves, and the gradients of its
// backward.
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>

#include "weft/core/tensor.h"

namespace weft {

class Tape;

/// A tensor as a backward lambda may keep it. Reading it back throws if its values were changed in
/// place after it was saved.
class Saved {
 public:
  Saved() = default;
  Saved(const Tensor& t, const char* label)
      : tensor_(t), version_(t.defined() ? t.version() : 0), label_(label) {}
  /// The tensor (null when a null one was saved).
  /// Throws Error "op: saved x was changed in place (version 3, saved at 2)".
  const Tensor& get() const {
    if (tensor_.defined() && tensor_.version() != version_) [[unlikely]]
      throw_changed();
    return tensor_;
  }
  /// The same, given away: a backward runs once and may use what it saved as its result.
  Tensor take() {
    get();
    return std::move(tensor_);
  }
  explicit operator bool() const { return tensor_.defined(); }

 private:
  [[noreturn]] void throw_changed() const;
  Tensor tensor_;
  std::uint32_t version_ = 0;
  const char* label_ = "";
};

/// Keeps t for the backward pass; `label` is the operand's name in the error message.
Saved save(const Tensor& t, const char* label = "x");

namespace detail {

/// What saved tensors and the tape of this thread tell each other.
struct SaveLog {
  std::int64_t bytes = 0;            ///< saved since an op was last recorded
  const char* running_op = nullptr;  ///< the op whose backward runs
};
extern constinit thread_local SaveLog save_log;

}  // namespace detail

/// Up to 8 tensors that are saved together.
struct SavedList {
  Saved items[8];
  int size = 0;
  void add(const Tensor& t, const char* label) { items[size++] = save(t, label); }
  TensorList get() const {
    TensorList out;
    for (int i = 0; i < size; ++i) out.push_back(items[i].get());
    return out;
  }
};

/// The inputs or outputs of an op for the length of a call: {&x, &weight}, or a TensorList where
/// their number is not fixed.
class TensorRefs {
 public:
  TensorRefs(std::initializer_list<const Tensor*> refs)
      : refs_(std::data(refs)), size_(static_cast<int>(refs.size())) {}
  TensorRefs(const TensorList& list) : list_(list.begin()), size_(list.size()) {}
  int size() const { return size_; }
  const Tensor& operator[](int i) const { return refs_ ? *refs_[i] : list_[i]; }

 private:
  const Tensor* const* refs_ = nullptr;
  const Tensor* list_ = nullptr;
  int size_;
};

/// What a backward lambda works with: the gradients of its op's outputs, and where to put those of
/// its inputs. Inputs and outputs are numbered as they were given to record().
class Backward {
 public:
  Backward(const Backward&) = delete;
  ~Backward() { detail::save_log.running_op = outer_op_; }
  /// Gradient of output i; null when nothing that reached the loss used it.
  const Tensor& dy(int i = 0) const { return dy_[i]; }
  /// Does input i need a gradient?
  bool needs(int i) const { return inputs_[i] != 0; }
  /// Adds dx to the gradient of input i (dropped when that input needs none).
  void add(int i, Tensor dx);
  /// The buffer in which the gradient of input i is being summed, for a kernel that adds to it in
  /// place of add(): no second buffer, no second pass. Null when there is none yet, when somebody
  /// else can see it, when an outer tape needs its history, and when it has not this shape and
  /// dtype (add() then says what is wrong). It may be the leaf's own grad() or, for a kernel that
  /// can add bf16 products to f32, its main_grad(); so until backward() has returned, those of a
  /// leaf may hold part of a sum.
  Tensor accumulator(int i, const Shape& shape, DType dtype, bool can_add_to_f32 = false);
  /// To be called by a backward that runs a fused kernel.
  /// Throws Error when an outer tape records: the kernel's derivative is not known to it.
  void once_differentiable() const;

 private:
  friend class Tape;
  Backward(Tape* tape, const char* op, const std::uint64_t* inputs, const Tensor* dy)
      : tape_(tape),
        op_(op),
        outer_op_(std::exchange(detail::save_log.running_op, op)),
        inputs_(inputs),
        dy_(dy) {}
  Tape* tape_;
  const char *op_, *outer_op_;
  const std::uint64_t* inputs_;  ///< ids; 0 for one that needs no gradient
  const Tensor* dy_;
};

}  // namespace weft
