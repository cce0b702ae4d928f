#pragma once
#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/core/fields.h"
#include "weft/core/kernels/optimizer.h"
#include "weft/core/named_tensor.h"
#include "weft/core/tensor_source.h"
#include "weft/optim/clip.h"
#include "weft/optim/groups.h"

namespace weft {
class OffloadMemory;
}
namespace weft::cuda {
class Graph;
}

namespace weft::optim {

/// The precision in which bf16 and f16 parameters are updated: 16 bits cannot represent a step a
/// few thousand times smaller than the value itself.
enum class MasterWeights : std::uint8_t {
  /// That of the parameter: small steps are lost, unless it is bf16 and rounding is stochastic.
  none,
  /// An f32 copy, 4 bytes per value. The parameter holds it rounded to nearest, ties to even.
  f32,
  /// bf16 only. The same f32 number split in two: the parameter is the nearest bf16, ties away from
  /// zero, and 2 bytes per value hold the remainder (core/kernels/remainder.h). Both forms take the
  /// same steps, bit for bit; the parameters differ in ties only.
  remainder
};
inline constexpr Word<MasterWeights> kMasterWeightsWords[] = {
    {"f32", MasterWeights::f32},
    {"remainder", MasterWeights::remainder},
    {"none", MasterWeights::none}};

/// How states in bf16 or e4m3, and bf16 parameters without master weights, are rounded. (f16 states
/// are rounded to nearest.)
enum class Rounding : std::uint8_t {
  /// To nearest, ties to even. A change of less than half a step of the format is lost.
  nearest,
  /// Up or down with probabilities that make the expected value exact. The choice depends on the
  /// seed, the parameter's name, the element's index in the whole parameter and the step, so it is
  /// the same for any sharding, device and number of threads.
  stochastic
};

struct StepResult {
  bool skipped = false;  ///< the gradient norm was not finite: parameters and state are unchanged
};

/// A module, all of whose parameters an optimizer can train.
template <class M>
concept Trainable = requires(const M& module) {
  { trained_parameters(module) } -> std::same_as<NamedTensors>;
};

/// Base class of optimizers: parameters with names and settings, a learning rate, and a state that
/// is saved by name. step() skips parameters without a gradient. Handles stay valid when the model
/// changes dtype or device, but the states do not follow: create the optimizer after to().
class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Performs one update with the gradients: main_grad() where set, else grad(), multiplied by
  /// clip.scale from measure_clip() if given. When the scale is not finite, parameters and state
  /// are unchanged. The host reads the scale only where that needs no wait: on the CPU a skipped
  /// step is reported and not counted, while on a GPU steps() and Adam's bias corrections advance
  /// as if it had run. During the capture of a cuda::Graph nothing is updated; each replay is an
  /// update.
  StepResult step(const GradClip& clip = {});
  /// The same in portions: updates parameters up to ends[0], calls after(0), updates up to ends[1],
  /// calls after(1), and so on. A skipped step calls after() too.
  StepResult step(const GradClip& clip, std::span<const std::size_t> ends,
                  const std::function<void(std::size_t portion)>& after);
  /// Drops every grad() and marks every main_grad() as empty: the next backward overwrites it, and
  /// until then its values are those of the last step. Code that writes one itself must write all
  /// of it.
  void zero_grad();

  double lr() const { return lr_; }
  void set_lr(double lr);
  /// Number of updates so far.
  std::int64_t steps() const { return steps_; }
  const NamedTensors& parameters() const { return parameters_; }
  MasterWeights master_weights() const { return master_form_; }
  /// The value that the optimizer updates for parameter i: its f32 master weight (a new tensor in
  /// the remainder form), or the parameter itself if it has none or other code has written it
  /// since.
  Tensor value(std::size_t i) const;
  /// The sum of squares of all value(i), or of the first counts[i] elements of each if `counts` is
  /// given: one f64 on the device, null for an empty sum. Does not wait. In the remainder form, one
  /// parameter at a time is converted to f32.
  Tensor sum_of_squares(std::span<const std::int64_t> counts = {}) const;
  /// The Euclidean norm over all parameters, counting tied ones once, from the f32 master weights
  /// where these are trained: one f64 on the device, null without parameters. Does not wait.
  Tensor parameter_norm() const;
  /// Declares that the parameters still match the master weights. Call it after copying parameters
  /// from a source that was rounded from the masters (a ZeRO all-gather).
  void keep_masters();

  /// From now on those of these parameters that it updates have no memory of their own: their
  /// values are their f32 master weights, rounded when they are needed. For weights that layers
  /// read as FP8 codes, which they make from such values for the time of one call; other code
  /// reads or writes them after restore_values() only.
  /// Destruction gives them their values. Throws Error unless they have f32 master weights and
  /// memory that is not shared with others.
  void store_as_masters(const std::vector<Tensor>& parameters);
  /// Gives them their values until the next release_values() or step().
  void restore_values();
  /// Takes them back. A parameter that was written in between resets its master weight first.
  void release_values();

  /// Copies of the state: "step" (i64, one element), for each parameter "<name>.<state>" as f32
  /// (f64 for an f64 model), whatever dtype the state has, and "<name>.master" (f32) where there is
  /// one, whatever its form.
  StateDict state_dict() const;
  /// The same one tensor at a time: reading one copies it only if it is not stored in that form, or
  /// waits outside of the device's memory. What is read holds until the next step.
  TensorSources state_sources() const;
  /// Loads optimizer state. Load the model first: a 16-bit parameter that is written after its
  /// master weight resets that master. In the remainder form the parameter is overwritten with its
  /// high half; where a state of the f32 form has a tie, that bf16 differs from the model file's.
  /// Throws Error, without changing anything, on a missing or unexpected name, another shape, a
  /// dtype that is not f32, f64, bf16 or f16, a tensor on meta, and a step below 0.
  void load_state_dict(const StateDict& state);

 protected:
  /// `settings`, if given, has one per parameter and replaces `rules` and `weight_decay`.
  Optimizer(NamedTensors parameters, const std::vector<GroupRule>& rules, double lr,
            double weight_decay, const std::optional<std::vector<ParamSettings>>& settings);

  /// One state tensor per parameter: AdamW's "m", SGD's "momentum".
  struct State {
    std::string name;
    std::vector<Tensor> tensors;
    /// f16 states: one f32 factor each. e4m3 states: the u8 exponents of their blocks
    /// (core/kernels/rounding.h). Otherwise null.
    std::vector<Tensor> scales;
    bool keeps_above_zero = false;  ///< f16 and e4m3: a number above 0 never becomes 0
  };
  /// Adds zeros for each parameter (f64 for an f64 one); returns the index in states_.
  std::size_t add_state(const char* name, DType dtype);
  /// Adds a master weight for every 16-bit parameter; the optimizer updates these.
  void add_masters(MasterWeights form);
  /// Sets how fill_slot() tells kernels to round.
  void set_rounding(Rounding rounding);
  /// Fills the kernel arguments of parameter i and its gradient. Returns false without a gradient.
  /// On the meta device the pointers stay null.
  bool fill_slot(std::size_t i, ParamSlot& slot);
  /// During a capture: the device address from which a kernel reads the result of numbers(),
  /// written by each replay. Otherwise null: use the current numbers.
  const StepNumbers* numbers_on_device(std::function<StepNumbers()> numbers) const;
  /// Updates the parameters [begin, end) that have a gradient; steps_ already counts this step.
  /// `grad_scale`: one double on the device, or null.
  virtual void update(const double* grad_scale, std::size_t begin, std::size_t end) = 0;

  NamedTensors parameters_;
  std::vector<DType> dtypes_;  ///< of the parameters
  std::vector<ParamSettings> settings_;
  std::vector<State> states_;
  double lr_;
  std::int64_t steps_ = 0;

 private:
  struct Master {
    Tensor kept;            ///< f32, or remainders (u8, two per value); null: no master
    std::uint32_t version;  ///< version of the parameter when both last agreed
    bool alone = false;     ///< the parameter has no memory of its own
  };
  /// Resets the master weight of each parameter that other code has written.
  void reset_stale_masters();
  /// Prepares a write of these parameters: resets stale master weights and counts the writes. Call
  /// it before the first write, because several parameters may be views of one storage.
  void before_write(const std::vector<std::size_t>& written);
  /// Releases the parameters that store_as_masters() named.
  void release_alone();
  /// The parameters that have a gradient. Reused, so that a step allocates nothing.
  const std::vector<std::size_t>& with_gradient();
  /// Makes each replay of the step being captured count as an update.
  void count_replays(cuda::Graph& graph);
  bool has_master(std::size_t i) const { return i < masters_.size() && masters_[i].kept.defined(); }
  /// Calls f with the states and master weights of parameters.
  template <class F>
  void each_state(std::size_t begin, std::size_t end, const F& f) const;
  /// On a GPU where a StateMemory was in use: moves states to pinned memory.
  void send_away(const Tensor& state) const;
  void send_away(std::size_t begin, std::size_t end) const;
  class FromOutside;
  struct Leaving;
  /// Begins to move a state there.
  void copy_out(const Tensor& state, std::vector<Leaving>& leaving) const;
  /// A state and the master weight of parameter i as state_dict() has them; without `copies`
  /// perhaps the stored tensor itself.
  Tensor read_state(const State& s, std::size_t i, bool copies) const;
  Tensor read_master(std::size_t i, bool copies) const;
  /// update() of each portion and after(), with states that wait outside: a few groups at a time
  /// are on the GPU.
  void update_in_groups(const double* grad_scale, std::span<const std::size_t> ends,
                        const std::function<void(std::size_t portion)>& after);
  /// Whether it has a master weight that no later write or move of the parameter has invalidated.
  bool master_is_current(std::size_t i) const;
  /// Throws Error when the parameter has moved, or has another dtype.
  void check_master(std::size_t i) const;
  MasterWeights master_form_ = MasterWeights::none;
  /// If rounding is stochastic, of each parameter.
  struct Draws {
    std::uint64_t stream;
    Tensor place;  ///< a ShardPlace on the device; null: the parameter is not a shard
  };
  std::vector<Draws> draws_;
  std::vector<Master> masters_;
  bool any_alone_ = false;
  OffloadMemory* outside_ = nullptr;  ///< on a GPU: where states wait between updates
  std::vector<std::size_t> with_gradient_;
};

}  // namespace weft::optim
