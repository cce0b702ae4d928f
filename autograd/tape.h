#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/autograd/backward.h"
#include "weft/autograd/tape_scope.h"
#include "weft/core/error.h"
#include "weft/core/tensor.h"

namespace weft {

/// Records the ops of one forward pass on this thread, from its construction to the end of its
/// scope. Recording order is a topological order, so backward() is one reverse loop, without
/// recursion or graph search. Each node is destroyed after it ran, which frees its saved tensors.
///
///   Tape tape;
///   Tensor loss = model(x);
///   loss.backward();
///
/// Nested tapes record the same ops, so gradients of gradients work: run the inner tape, and the
/// outer one records its backward.
///
/// A tape belongs to the thread that created it. Tapes on several threads may use the same leaves
/// at the same time, and grad() is exact on each. backward() writes to a leaf's grad(), so only one
/// thread at a time may run it for a leaf: on another thread it throws Error and can be called
/// again later. Tensors recorded by other threads are constants.
class Tape : TapeScope {
 public:
  Tape() : Tape(Mode::recording, nullptr) {}
  /// Tapes may be destroyed in any order, except inside their own backward() or recompute().
  ~Tape();

  /// The innermost recording tape of this thread, or null.
  static Tape* current() { return top_ ? top_->records_ : nullptr; }
  /// The innermost tape, recording or not, or null.
  static Tape* innermost() { return tape_at(top_); }
  /// The tape that records the same ops as this one, or null.
  Tape* outer() const { return mode_ == Mode::counting ? nullptr : around(); }

  /// Runs the record backward from `loss` with upstream gradient `dy` (null: 1, for a one-element
  /// loss) and fills grad() of every leaf. The tape is spent afterwards.
  /// Throws Error if the loss is not on this tape, no leaf is, another thread's backward() is
  /// adding to one of its leaves (the tape stays usable), or the tape is spent. A constant gradient
  /// from an inner tape counts as on the tape.
  void backward(const Tensor& loss, const Tensor& dy = {});
  /// d(loss)/d(x) for each x (zeros where the loss does not depend on it); changes no grad().
  TensorList gradients(const Tensor& loss, const TensorList& xs, const Tensor& dy = {});

  /// Sets a hook that is called when a leaf's gradient of this backward pass is complete.
  void on_grad_ready(std::function<void(const Tensor& leaf)> hook) {
    grad_ready_ = std::move(hook);
  }
  /// Sets a hook that is called once after backward, with the leaves that received no gradient.
  void on_backward_end(std::function<void(const std::vector<Tensor>& unused)> hook) {
    backward_end_ = std::move(hook);
  }
  /// The leaves that ops on this tape have used so far.
  std::vector<Tensor> leaves() const;
  /// The number of recorded ops that have not run yet.
  int size() const;
  /// One line per op: name, output shape, bytes that its backward keeps alive.
  std::string print() const;

  /// Adds an op to every recording tape of this thread. The outputs become tracked; backward calls
  /// `fn(Backward&)` once with their gradients. Call only if recording(inputs...).
  template <class F>
  static void record(const char* name, const TensorRefs& inputs, const TensorRefs& outputs,
                     F&& fn) {
    using Fn = std::decay_t<F>;
    static_assert(alignof(Fn) <= alignof(std::max_align_t));
    number(outputs);
    for (Tape* tape = current(); tape; tape = tape->outer())
      if (void* place = tape->add_node(
              name, inputs, outputs, sizeof(Fn),
              [](void* f, Backward& b) { (*static_cast<Fn*>(f))(b); },
              [](void* f) { static_cast<Fn*>(f)->~Fn(); }))
        new (place) Fn(fn);
  }

  /// True if a tape of this thread follows this tensor.
  static bool follows(const Tensor& t) {
    if (!t.requires_grad() || t.impl()->leaf) return t.requires_grad();
    const Tape* const tape = innermost();
    return tape && tape->numbered(t.impl()->tape_id);
  }
  /// True if the current tape only counts uses, because a recomputed region will run again.
  /// Anything that an op saves for backward is then dropped.
  static bool counting() { return current() && current()->mode_ == Mode::counting; }

  /// How many tensors the tapes of one thread can number until the outermost tape ends.
  static constexpr std::uint64_t kReach = std::uint64_t{1} << 39;

 protected:
  // For autograd/recompute.h.
  enum class Mode : std::uint8_t { recording, counting, running, spent };
  /// A tape with a parent replays a node of it; gradients of older tensors go to the parent.
  explicit Tape(Mode mode, Tape* parent);
  static Tape* tape_of(const Backward& b) { return b.tape_; }
  /// The tape that recorded when this one was opened, if it still records.
  Tape* around() const { return below_ ? below_->records_ : nullptr; }
  /// Gives the outputs of an op the next ids of this thread.
  static void number(const TensorRefs& outputs);
  void hand_uses_to(Tape& tape) const;
  void check_can_run(const char* caller, const TensorList& ys, const TensorList& dys) const;
  /// Runs backward from ys without changing any grad(). Returns gradients of xs, null if none.
  TensorList collect(const char* caller, const TensorList& ys, const TensorList& dys,
                     const TensorList& xs);

 private:
  friend class Backward;
  struct Node;
  struct Slot;
  struct Leaf;
  struct State;
  struct Run;
  using Invoke = void (*)(void* fn, Backward& b);
  using Destroy = void (*)(void* fn);

  static Tape* tape_at(TapeScope* s) {
    while (s && !s->is_tape_) s = s->below_;
    return static_cast<Tape*>(s);
  }
  void clear();
  bool numbered(std::uint64_t id) const { return id - oldest_ < kReach; }
  void* add_node(const char* name, const TensorRefs& inputs, const TensorRefs& outputs,
                 std::size_t fn_bytes, Invoke invoke, Destroy destroy);
  std::uint64_t use_leaf(const Tensor& x, int uses = 1);
  std::uint64_t leaf_id(const Tensor& x) const;
  std::uint64_t id_of(const Tensor& x) const;
  void run(const char* caller, const TensorList& ys, const TensorList& dys);
  void run_node(Node& node);
  Tape& holder(std::uint64_t id);
  Slot& slot(std::uint64_t id);
  // backward.cpp
  void accumulate(Slot& s, const char* op, Tensor dx);
  const Tensor* leaf_to_fill(const Slot& s) const;
  bool can_add_in_place(Slot& s) const;
  // tape_leaves.cpp
  void answer_uses(Slot& s, int uses);
  std::vector<Tensor> unused_leaves() const;
  void claim_leaves();
  void give_leaves_back();

  State* state_;  ///< recycled between the tapes of a thread
  Tape* parent_;
  Mode mode_;
  bool collects_ = false;        ///< collect() is running: leaves keep their grad()
  bool heard_backward_ = false;  ///< a tape inside this one has run backward
  std::uint64_t base_;           ///< tensors with smaller ids are older than this tape
  std::uint64_t oldest_;         ///< tensors with smaller ids are constants for this thread's tapes
  std::function<void(const Tensor&)> grad_ready_;
  std::function<void(const std::vector<Tensor>&)> backward_end_;
  static constinit thread_local std::uint64_t next_id_;
};

/// True if a tape records and follows one of the inputs: the op must then call Tape::record().
template <class... Ts>
inline bool recording(const Ts&... inputs) {
  return Tape::current() != nullptr && (Tape::follows(inputs) || ...);
}

/// dy/dx for each x, from the innermost tape; zeros where y does not depend on x. Changes no
/// grad(). `dy` is the upstream gradient (null: 1, for a one-element y).
TensorList grad(const Tensor& y, const TensorList& xs, const Tensor& dy = {});

}  // namespace weft
