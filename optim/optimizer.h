#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/core/fields.h"
#include "weft/core/kernels/optimizer.h"
#include "weft/core/named_tensor.h"
#include "weft/optim/clip.h"
#include "weft/optim/groups.h"

namespace weft::cuda {
class Graph;
}

namespace weft::optim {

/// What bf16 parameters are updated in: they themselves have no room for a step a thousand times
/// smaller than their value.
enum class MasterWeights : std::uint8_t {
  /// In themselves: small steps are lost.
  none,
  /// In an f32 copy, 4 bytes a value. The parameter holds it rounded to nearest, ties to even.
  f32,
  /// In the same f32 number cut in two: the parameter is the bf16 next to it, ties away from zero,
  /// and 2 bytes a value say what is missing (core/kernels/remainder.h). Both forms take the same
  /// steps, bit by bit; parameters differ in ties.
  remainder
};
inline constexpr Word<MasterWeights> kMasterWeightsWords[] = {
    {"f32", MasterWeights::f32}, {"remainder", MasterWeights::remainder}};

struct StepResult {
  bool skipped = false;  ///< the gradient norm was not finite: parameters and state are as before
};

/// The base of optimizers: parameters with their names and settings, a learning rate, and a state
/// that is saved by name. A parameter without a gradient is left alone by step(). Handles stay
/// valid when the model changes dtype or device.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update from the gradients: main_grad() where set, else grad(), multiplied by clip.scale
  /// where measure_clip() was asked. When that is not finite, parameters and state stay as they
  /// are. The host looks at it only where that costs no wait: a skipped step is reported and does
  /// not count on the CPU, while on a GPU steps() and Adam's corrections go on as if it had run.
  /// Inside the capture of a cuda::Graph nothing is updated: each replay is an update.
  StepResult step(const GradClip& clip = {});
  /// The same in portions: parameters up to ends[0] and then after(0), up to ends[1] and after(1),
  /// and so on. A skipped step calls after() too.
  StepResult step(const GradClip& clip, std::span<const std::size_t> ends,
                  const std::function<void(std::size_t portion)>& after);
  /// Drops every grad() and zeroes every main_grad().
  void zero_grad();

  double lr() const { return lr_; }
  void set_lr(double lr);
  /// Updates made so far.
  std::int64_t steps() const { return steps_; }
  const NamedTensors& parameters() const { return parameters_; }
  MasterWeights master_weights() const { return master_form_; }
  /// What parameter i is updated in: its f32 master weight (a new tensor in the remainder form), or
  /// the parameter itself where it has none or somebody else has written it since.
  Tensor value(std::size_t i) const;
  /// The sum of squares of all value(i), of the first counts[i] elements each where `counts` is
  /// given: one f64 on the device, null when there is nothing to add up. Nothing waits. In the
  /// remainder form one parameter at a time is there as f32.
  Tensor sum_of_squares(std::span<const std::int64_t> counts = {}) const;
  /// The Euclidean norm over all parameters, a tied one counted once, from the f32 master weights
  /// where these are what is trained: one f64 on the device, null without parameters. Nothing
  /// waits.
  Tensor parameter_norm() const;
  /// Whoever has written parameters since the last step wrote what the master weights say: these
  /// stay.
  void keep_masters();

  /// "step" (i64, one element) and for each parameter "<name>.<state>" as f32 (f64 for an f64
  /// model), whatever dtype the state is kept in; "<name>.master" (f32) where there is one, in
  /// whatever form it is kept. Copies.
  StateDict state_dict() const;
  /// A model's own weights are loaded first: the master weight of a bf16 parameter starts from that
  /// again when it was written after the master weight. In the remainder form the parameter is set
  /// as well, to its half: where a state of the f32 form has a tie, that is another bf16 than the
  /// model's file has. Throws Error on a missing or unexpected name, or another shape; nothing is
  /// changed then.
  void load_state_dict(const StateDict& state);

 protected:
  /// `settings` has one for each parameter, where `rules` and `weight_decay` are not to say.
  Optimizer(NamedTensors parameters, const std::vector<GroupRule>& rules, double lr,
            double weight_decay, const std::optional<std::vector<ParamSettings>>& settings);

  /// One state tensor of each parameter: AdamW's "m", SGD's "momentum".
  struct State {
    std::string name;
    std::vector<Tensor> tensors;
    std::vector<Tensor> scales;  ///< f16 states: one f32 factor each; null otherwise
  };
  /// Zeros for each parameter (f64 for an f64 one); returns the index in states_.
  std::size_t add_state(const char* name, DType dtype);
  /// Keeps a master weight of every bf16 parameter, which is what gets updated.
  void add_masters(MasterWeights form);
  /// Describes parameter i and its gradient to a kernel. False: no gradient. On the meta device the
  /// pointers stay null.
  bool fill_slot(std::size_t i, ParamSlot& slot);
  /// Where a kernel finds what numbers() returns when it runs: null for "as it is now", else the
  /// place in device memory that each replay of the captured step writes.
  const StepNumbers* numbers_on_device(std::function<StepNumbers()> numbers) const;
  /// Updates the parameters [begin, end) that have a gradient; steps_ already counts this one.
  /// `grad_scale` is one double on the device, or null.
  virtual void update(const double* grad_scale, std::size_t begin, std::size_t end) = 0;

  NamedTensors parameters_;
  std::vector<ParamSettings> settings_;
  std::vector<State> states_;
  double lr_;
  std::int64_t steps_ = 0;

 private:
  struct Master {
    Tensor kept;            ///< f32, or remainders (u8, two a value); null: the parameter has none
    std::uint32_t version;  ///< of the parameter when both agreed last
  };
  /// A master weight starts from its parameter again if somebody else has written that.
  void follow_parameters();
  /// What is due before these parameters are written: master weights follow, and the write is
  /// counted. Before the first is written, because several may be views of one storage.
  void before_write(const std::vector<std::size_t>& written);
  /// The parameters that have a gradient. Kept, so that a step touches no heap.
  const std::vector<std::size_t>& with_gradient();
  /// Has replays of the step that is being captured count as updates.
  void count_replays(cuda::Graph& graph);
  bool has_master(std::size_t i) const { return i < masters_.size() && masters_[i].kept; }
  /// Has it one that nobody has overtaken by writing or moving the parameter?
  bool master_counts(std::size_t i) const;
  /// Throws Error when the parameter has moved, or has another dtype.
  void check_master(std::size_t i) const;
  MasterWeights master_form_ = MasterWeights::none;
  std::vector<Master> masters_;
  std::vector<std::size_t> with_gradient_;
};

}  // namespace weft::optim
