#pragma once
// What the author of an op uses: saved tensors, and the gradients inside its backward.
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>

#include "weft/core/tensor.h"

namespace weft {

class Tape;

/// A tensor saved for backward. get() throws if its values were changed in place since then, and
/// brings them back if they were released until backward needs them (core/restorer.h).
class Saved {
 public:
  Saved() = default;
  Saved(const Tensor& t, const char* label)
      : tensor_(t), version_(t.defined() ? t.version() : 0), label_(label) {}
  /// The tensor; null if a null tensor was saved.
  /// Throws Error "op: saved x was changed in place (version 3, saved at 2)".
  const Tensor& get() const {
    if (tensor_.defined()) {
      if (tensor_.version() != version_) [[unlikely]]
        throw_changed();
      if (tensor_.storage()->restorer) bring_back();
    }
    return tensor_;
  }
  /// Moves the tensor out. A backward runs once, so it may reuse a saved tensor as its result.
  Tensor take() {
    get();
    return std::move(tensor_);
  }
  explicit operator bool() const { return tensor_.defined(); }

 private:
  [[noreturn]] void throw_changed() const;
  void bring_back() const;
  Tensor tensor_;
  std::uint32_t version_ = 0;
  const char* label_ = "";
};

/// Keeps t for the backward pass; `label` is the operand's name in the error message.
Saved save(const Tensor& t, const char* label = "x");

namespace detail {

/// What saved tensors and this thread's tape tell each other.
struct SaveLog {
  std::int64_t bytes = 0;            ///< bytes saved since the last op was recorded
  const char* running_op = nullptr;  ///< the op whose backward is running
  int watches = 0;                   ///< open scopes of autograd/save_watch.h
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

/// The inputs or outputs of an op during a call: {&x, &weight}, or a TensorList of any length.
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

/// A buffer that holds or will hold the sum of an input's gradients.
struct GradientSum {
  Tensor to;          ///< null if there is none
  bool adds = false;  ///< a kernel adds to what it holds; otherwise the kernel overwrites it
};

/// The argument of a backward lambda: holds the gradients of the op's outputs and takes those of
/// its inputs. Inputs and outputs have the indices they had in record().
class Backward {
 public:
  Backward(const Backward&) = delete;
  ~Backward() { detail::save_log.running_op = outer_op_; }
  /// The upstream gradient of output i; null if the loss does not depend on that output.
  const Tensor& dy(int i = 0) const { return dy_[i]; }
  /// Whether input i needs a gradient.
  bool needs(int i) const { return inputs_[i] != 0; }
  /// Adds dx to the gradient of input i. Does nothing if that input needs no gradient.
  void add(int i, Tensor dx);
  /// Adds dx, which may be wider than the input's dtype `dtype`: a main_grad() of dx's dtype gets
  /// it unrounded.
  void add_wide(int i, const Tensor& dx, DType dtype);
  /// The buffer for the gradient of input i, for a kernel that writes it and does not call add():
  /// this saves a buffer and a pass over memory. A caller that gets one must write all of it. It is
  /// the leaf's main_grad(), which the first gradient of a step overwrites, or the sum so far,
  /// which may be the leaf's grad(); both may hold a partial sum until backward() returns. Null if
  /// there is no gradient yet, another handle shares the buffer, an outer tape needs its history,
  /// or its shape or dtype differs (add() then reports that). `can_be_f32`: for bf16 and
  /// f16 a main_grad() of f32 will do too.
  GradientSum accumulator(int i, const Shape& shape, DType dtype, bool can_be_f32 = false);
  /// f32 where input i is a leaf of 16 bits with an f32 main_grad(), to which add_wide() adds, or
  /// was given to sum_in_f32(); else dtype.
  DType sum_dtype(int i, DType dtype) const;
  /// Makes backward sum the gradient of y in f32 and give it to y's op in f32: ops that can write a
  /// main_grad() of f32 write it unrounded. y: a 16-bit output of the op that was recorded last.
  static void sum_in_f32(const Tensor& y);
  /// Call this in a backward that runs a fused kernel.
  /// Throws Error if an outer tape is recording: it could not differentiate the kernel.
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
  const std::uint64_t* inputs_;  ///< ids; 0 if the input needs no gradient
  const Tensor* dy_;
};

}  // namespace weft
