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

/// A straight-line record of one forward pass on this thread, from its construction to the end of
/// its scope. Recording order is already a topological order, so backward() is one reverse loop: no
/// recursion, no graph search. A node is destroyed as soon as it has run, which frees what it
/// saved.
///
///   Tape tape;
///   Tensor loss = model(x);
///   loss.backward();
///
/// A tape that is opened inside another one hears the same ops, so the gradient of a gradient
/// works: run the inner tape, and the outer one has recorded its backward.
///
/// A tape belongs to the thread that made it. Tapes of several threads may use the same leaves at
/// the same time, and their grad() is exact; backward() adds to what the leaf owns, so one thread
/// at a time may run it for a leaf: another one's throws Error, and may be called again later. A
/// tensor that another thread has recorded is a constant.
class Tape : TapeScope {
 public:
  Tape() : Tape(Mode::recording, nullptr) {}
  /// Tapes may end in any order, except inside their own backward() or recompute().
  ~Tape();

  /// The innermost tape that records on this thread, or null.
  static Tape* current() { return top_ ? top_->records_ : nullptr; }
  /// The innermost tape, whether it records or not, or null.
  static Tape* innermost() { return tape_at(top_); }
  /// The tape that also records what this one records, or null.
  Tape* outer() const { return mode_ == Mode::counting ? nullptr : around(); }

  /// Runs the record backwards from `loss` with cotangent `dy` (null: 1, for a one-element loss),
  /// and fills grad() of every leaf. The tape is spent afterwards.
  /// Throws Error when the loss is not on this tape, no leaf is, or another thread's backward()
  /// adds to one of its leaves (the tape stays usable), or the tape is spent. A gradient of an
  /// inner tape that depends on nothing counts as on the tape.
  void backward(const Tensor& loss, const Tensor& dy = {});
  /// d(loss)/d(x) for each x (zeros where the loss does not depend on it); touches no grad().
  TensorList gradients(const Tensor& loss, const TensorList& xs, const Tensor& dy = {});

  /// Called when a leaf has received its last gradient of this backward pass.
  void on_grad_ready(std::function<void(const Tensor& leaf)> hook) {
    grad_ready_ = std::move(hook);
  }
  /// Called once after backward with the leaves on this tape that no gradient reached.
  void on_backward_end(std::function<void(const std::vector<Tensor>& unused)> hook) {
    backward_end_ = std::move(hook);
  }
  /// The leaves that ops on this tape have used so far.
  std::vector<Tensor> leaves() const;
  /// Number of recorded ops not yet run.
  int size() const;
  /// One line an op: name, output shape, bytes its backward keeps alive.
  std::string print() const;

  /// Adds an op to every tape of this thread. The outputs become tracked; `fn(Backward&)` will be
  /// called once with their gradients. Call only if recording(inputs...).
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

  /// Does any tape of this thread follow this tensor?
  static bool follows(const Tensor& t) {
    if (!t.requires_grad() || t.impl()->leaf) return t.requires_grad();
    const Tape* const tape = innermost();
    return tape && tape->numbered(t.impl()->tape_id);
  }
  /// Does the current tape only count uses, because a recomputed region will run again? What
  /// would be kept for backward is dropped then.
  static bool counting() { return current() && current()->mode_ == Mode::counting; }

  /// How many tensors the tapes of one thread can number before the outermost of them ends.
  static constexpr std::uint64_t kReach = std::uint64_t{1} << 39;

 protected:
  // For autograd/recompute.h.
  enum class Mode : std::uint8_t { recording, counting, running, spent };
  /// A tape with a parent replays a node of it: gradients of what is older are summed there.
  explicit Tape(Mode mode, Tape* parent);
  static Tape* tape_of(const Backward& b) { return b.tape_; }
  /// The tape that recorded when this one was opened, if it still does.
  Tape* around() const { return below_ ? below_->records_ : nullptr; }
  /// The outputs of an op get the next numbers of this thread.
  static void number(const TensorRefs& outputs);
  void hand_uses_to(Tape& tape) const;
  void check_can_run(const char* caller, const TensorList& ys, const TensorList& dys) const;
  /// Runs from ys, leaving every grad() alone; the gradients of xs, null where there is none.
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
  bool collects_ = false;        ///< collect(): leaves keep their grad()
  bool heard_backward_ = false;  ///< a tape inside this one has run backwards
  std::uint64_t base_;           ///< tensors with smaller ids are older than this tape
  std::uint64_t oldest_;         ///< those with smaller ids are constants to this thread's tapes
  std::function<void(const Tensor&)> grad_ready_;
  std::function<void(const std::vector<Tensor>&)> backward_end_;
  static constinit thread_local std::uint64_t next_id_;
};

/// True when a tape records and follows one of the inputs: the op must call Tape::record().
template <class... Ts>
inline bool recording(const Ts&... inputs) {
  return Tape::current() != nullptr && (Tape::follows(inputs) || ...);
}

/// dy/dx for each x by the innermost tape, leaving every grad() alone; zeros where y does not
/// depend on x. `dy` is the cotangent (null: 1, for a one-element y).
TensorList grad(const Tensor& y, const TensorList& xs, const Tensor& dy = {});

}  // namespace weft
