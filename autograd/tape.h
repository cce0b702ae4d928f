#pragma once
#include <cstddef>
#include <functional>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/autograd/delay_gradients.h"
#include "weft/core/error.h"
#include "weft/core/tensor.h"

namespace weft {

class Tape;

/// A tensor as a backward lambda may keep it. Reading it back throws when somebody changed the
/// values in place in between.
class Saved {
 public:
  Saved() = default;
  Saved(const Tensor& t, const char* label)
      : tensor_(t), version_(t ? t.version() : 0), label_(label) {}
  /// The tensor (null when a null one was saved).
  /// Throws Error "op: saved x was changed in place (version 3, saved at 2)".
  const Tensor& get() const {
    if (tensor_ && tensor_.version() != version_) [[unlikely]]
      throw_changed();
    return tensor_;
  }
  /// The same, given away: a backward runs once and may use what it saved as its result.
  Tensor take() {
    get();
    return std::move(tensor_);
  }
  explicit operator bool() const { return static_cast<bool>(tensor_); }

 private:
  [[noreturn]] void throw_changed() const;
  Tensor tensor_;
  std::uint32_t version_ = 0;
  const char* label_ = "";
};

/// Keeps t for the backward pass; `label` is the operand's name in the error message.
Saved save(const Tensor& t, const char* label = "x");

/// What a backward lambda works with: the gradients of its op's outputs, and where to put those of
/// its inputs. Inputs and outputs are numbered as they were given to record().
class Backward {
 public:
  /// Gradient of output i; null when nothing that reached the loss used it.
  const Tensor& dy(int i = 0) const { return dy_[i]; }
  /// Does input i need a gradient?
  bool needs(int i) const { return slots_[i] != 0; }
  /// Adds dx to the gradient of input i (dropped when that input needs none).
  void add(int i, Tensor dx);
  /// The buffer in which the gradient of input i is being summed, for a kernel that adds to it in
  /// place of add(): no second buffer, no second pass. Null when there is none yet, when somebody
  /// else can see it, when an outer tape needs its history, and when it has not this shape and
  /// dtype (add() then says what is wrong). It may be the leaf's own grad() or, for a kernel that
  /// can add bf16 products to f32, its main_grad(); so until backward() has returned, those of a
  /// leaf may hold part of a sum.
  Tensor accumulator(int i, const Shape& shape, DType dtype, bool can_add_to_f32 = false);
  /// Runs fn(Backward&), which adds the gradients of these inputs and keeps what it needs itself,
  /// dy included: at once, or under DelayWeightGradients, if all of them are leaves, later in this
  /// pass. A leaf's gradient is ready when nothing of it waits any more.
  template <class F>
  void put_off(std::initializer_list<int> inputs, F&& fn);
  /// To be called by a backward that runs a fused kernel.
  /// Throws Error when an outer tape records: the kernel's derivative is not known to it.
  void once_differentiable() const;

 private:
  friend class Tape;
  friend class ReplayTape;
  Tape* tape_ = nullptr;
  const char* op_ = "";
  const std::uint64_t* slots_ = nullptr;
  const Tensor* dy_ = nullptr;
};

/// The inputs or outputs of an op, whichever way record() was given them.
class TensorRefs {
 public:
  TensorRefs(const Tensor* const* refs, std::size_t size)
      : refs_(refs), size_(static_cast<int>(size)) {}
  explicit TensorRefs(const TensorList& list) : list_(list.begin()), size_(list.size()) {}
  int size() const { return size_; }
  const Tensor& operator[](int i) const { return refs_ ? *refs_[i] : list_[i]; }

 private:
  const Tensor* const* refs_ = nullptr;
  const Tensor* list_ = nullptr;
  int size_;
};

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
class Tape {
 public:
  Tape();
  /// Tapes may end in any order, except inside their own backward() or recompute().
  ~Tape();
  Tape(const Tape&) = delete;

  /// The innermost tape that records on this thread, or null.
  static Tape* current() { return current_; }

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
  int size() const { return nodes_; }
  /// One line an op: name, output shape, bytes its backward keeps alive.
  std::string print() const;

  /// Adds an op to every tape of this thread. The outputs become tracked; `fn(Backward&)` will be
  /// called once with their gradients. Call only if recording(inputs...).
  template <class F>
  static void record(const char* name, std::initializer_list<const Tensor*> inputs,
                     std::initializer_list<const Tensor*> outputs, F&& fn) {
    record_refs(name, {inputs.begin(), inputs.size()}, {outputs.begin(), outputs.size()},
                std::forward<F>(fn));
  }
  /// The same for an op whose number of inputs or outputs is not fixed.
  template <class F>
  static void record(const char* name, const TensorList& inputs, const TensorList& outputs,
                     F&& fn) {
    record_refs(name, TensorRefs(inputs), TensorRefs(outputs), std::forward<F>(fn));
  }

  /// How many tensors the tapes of one thread can number before the outermost of them ends.
  static constexpr std::uint64_t kReach = std::uint64_t{1} << 39;

  /// Does any tape of this thread follow this tensor?
  static bool follows(const Tensor& t) {
    return t.requires_grad() && (t.impl()->leaf || numbered(t.impl()->tape_id));
  }
  /// Does the current tape only count uses, because a recomputed region will run again? What
  /// would be kept for backward is dropped then.
  static bool counting() { return current_ != nullptr && current_->mode_ == Mode::counting; }

 private:
  friend class Backward;
  friend class TapeSwitch;
  friend class RecomputeRegion;
  friend class ReplayTape;
  friend class DelayWeightGradients;
  struct Node;
  struct PutOff;
  struct Slot;
  struct Leaf;
  struct LeafTable;
  struct OldSlots;
  struct State;
  struct Pool;
  static constexpr std::uint64_t kNoBase = std::uint64_t{1} << 63;
  /// Was this number given out since this thread's outermost tape was opened?
  static bool numbered(std::uint64_t id) { return id - outermost_base_ < kReach; }
  enum class Mode : std::uint8_t { recording, counting, running, spent };
  using Invoke = void (*)(void* fn, Backward& b);
  using Destroy = void (*)(void* fn);

  template <class F>
  static void record_refs(const char* name, const TensorRefs& inputs, const TensorRefs& outputs,
                          F&& fn);
  void* begin_node(const char* name, const TensorRefs& inputs, const TensorRefs& outputs,
                   std::size_t fn_bytes, Invoke invoke, Destroy destroy);
  void run(const char* caller, const TensorList& ys, const TensorList& dys);
  void check_runnable(const char* caller) const;
  void check_loss(const char* caller, const Tensor& y, const Tensor& dy) const;
  void run_node(Node& node);
  Slot& slot(std::uint64_t id);
  /// Counts a use of the leaf; returns its number on this tape.
  std::uint64_t use_leaf(const Tensor& x);
  /// 0 when no op of this tape has used it.
  std::uint64_t leaf_id(const Tensor& x) const;
  /// The same of any tensor: 0 for one that this thread does not follow.
  std::uint64_t id_of(const Tensor& x) const;
  void claim_leaves();
  void give_leaves_back();
  void unlink();
  void accumulate(Slot& slot, const char* op, Tensor dx);
  Tape& summing(std::uint64_t id);
  Tensor main_grad_of(const Slot& s) const;
  bool can_add_in_place(Slot& slot);
  void* begin_put_off(const Backward& b, std::initializer_list<int> inputs, std::size_t fn_bytes,
                      Invoke invoke, Destroy destroy);
  void run_put_off();
  void run_put_off_before(std::uint64_t id);
  void leaf_used(Slot& slot, int uses);
  void finish_leaf(Leaf& leaf, Slot& slot);
  void want_gradient(const Tensor& x);
  Tensor take_gradient(const Tensor& x);
  void clear();
  static void follow_outputs(const TensorRefs& outputs);
  std::size_t counted_uses() const;
  void forget_uses(std::size_t from);

  State* state_;              ///< recycled between the tapes of a thread
  Tape* scope_outer_;         ///< the tape whose scope encloses this one
  Tape* outer_;               ///< the tape that also records what this one records
  std::uint64_t base_;        ///< tensors with smaller ids are older than this tape
  std::uint64_t outer_base_;  ///< outermost_base_ before this tape
  int nodes_ = 0;
  bool collect_only_ = false;     ///< gradients(): leaves keep their grad()
  bool running_put_off_ = false;  ///< what is put off runs, in its order
  Tape* parent_ = nullptr;        ///< of a replay: sums the gradients of what is older than it
  Mode mode_ = Mode::recording;
  std::function<void(const Tensor&)> grad_ready_;
  std::function<void(const std::vector<Tensor>&)> backward_end_;

  static constinit thread_local Tape* current_;
  static constinit thread_local Tape* innermost_;
  static constinit thread_local Tape* running_;  ///< the innermost one that runs backwards
  static constinit thread_local std::uint64_t outermost_base_;
  friend void backward_from(const Tensor& loss, const Tensor& dy);
  friend TensorList grad(const Tensor& y, const TensorList& xs, const Tensor& dy);
};

/// True when a tape records and follows one of the inputs: the op must call Tape::record().
template <class... Ts>
inline bool recording(const Ts&... inputs) {
  return Tape::current() != nullptr && (Tape::follows(inputs) || ...);
}

void backward_from(const Tensor& loss, const Tensor& dy);

/// dy/dx for each x by the innermost tape, leaving every grad() alone; zeros where y does not
/// depend on x. `dy` is the cotangent (null: 1, for a one-element y).
TensorList grad(const Tensor& y, const TensorList& xs, const Tensor& dy = {});

/// Makes a tape, or none, the current one of this thread until the end of the scope; then the
/// previous one again, or, where that has ended, the one around it.
class TapeSwitch {
 public:
  TapeSwitch(const TapeSwitch&) = delete;

 protected:
  friend class Tape;
  explicit TapeSwitch(Tape* now)
      : now_(now),
        previous_(std::exchange(Tape::current_, now)),
        below_(std::exchange(innermost_, this)) {}
  ~TapeSwitch() {
    if (innermost_ == this) {
      Tape::current_ = previous_;
      innermost_ = below_;
    } else {
      unlink();
    }
  }

 private:
  static void forget(const Tape& ended, Tape* outer);
  void unlink();
  Tape* now_;
  Tape* previous_;
  TapeSwitch* below_;
  static constinit thread_local TapeSwitch* innermost_;
};

/// Nothing is recorded on this thread until the end of the scope.
class NoGradGuard : public TapeSwitch {
 public:
  NoGradGuard() : TapeSwitch(nullptr) {}
};

template <class F>
void Backward::put_off(std::initializer_list<int> inputs, F&& fn) {
  if (!DelayWeightGradients::on_) return fn(*this);
  using Fn = std::decay_t<F>;
  static_assert(alignof(Fn) <= alignof(std::max_align_t));
  void* place = tape_->begin_put_off(
      *this, inputs, sizeof(Fn), [](void* f, Backward& b) { (*static_cast<Fn*>(f))(b); },
      [](void* f) { static_cast<Fn*>(f)->~Fn(); });
  if (place)
    new (place) Fn(std::forward<F>(fn));
  else
    fn(*this);
}

template <class F>
void Tape::record_refs(const char* name, const TensorRefs& inputs, const TensorRefs& outputs,
                       F&& fn) {
  using Fn = std::decay_t<F>;
  static_assert(alignof(Fn) <= alignof(std::max_align_t));
  follow_outputs(outputs);
  for (Tape* tape = current_; tape; tape = tape->outer_) {
    void* place = tape->begin_node(
        name, inputs, outputs, sizeof(Fn), [](void* f, Backward& b) { (*static_cast<Fn*>(f))(b); },
        [](void* f) { static_cast<Fn*>(f)->~Fn(); });
    if (place) new (place) Fn(fn);
  }
}

}  // namespace weft
