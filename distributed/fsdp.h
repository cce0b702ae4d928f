#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "weft/autograd/backward.h"
#include "weft/distributed/ddp.h"

namespace weft::distributed {

/// Fully sharded data parallelism, the part of a Ddp with `fsdp` that moves parameters and
/// gradients. A unit is a module directly below the model, such as an embedding, a block or a head,
/// with its small neighbours, see fsdp_units(). Each rank keeps its slices of a unit's parameters
/// and gradient sums. The parameters are gathered before a use, one unit ahead, and freed after it,
/// in forward and again in backward; the last two units of forward stay for backward, which begins
/// with them. When the backward of a unit's last use ends, its gradients are reduce-scattered and
/// added to the slices, and their memory is freed. So a rank holds at most two units of parameters
/// and two of gradients beside its slices; a unit that is used again, such as that of a tied head,
/// holds its gradients longer, from the backward of its last use to that of its first. What
/// Module::backward_reads_parameters() denies is not gathered for backward.
///
/// The model's tensors keep their identity and version while they have no memory: what backward has
/// saved stays valid. An update counts as one change.
///
/// Source: Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel",
/// arXiv:2304.11277; Rajbhandari et al. 2020, arXiv:1910.02054, stages 2 and 3.
class Fsdp {
 public:
  using Bucket = Ddp::Bucket;
  /// All must outlive it.
  Fsdp(std::vector<Bucket>& buckets, const NamedTensors& parameters, const DdpOptions& options);
  /// The parameters have no memory afterwards: reading one throws.
  ~Fsdp();
  Fsdp(const Fsdp&) = delete;
  Fsdp& operator=(const Fsdp&) = delete;
  /// Takes the last bucket over: this rank's slices get memory of their own, the rest loses its.
  void take();

  /// Shard::before_use(): the parameters of `part` are here until the next call.
  void use(const nn::Module& part);
  /// Waits for gathers in flight.
  void wait();
  /// Gathers everything until release(). use() then does nothing, so that one rank can run the
  /// model alone.
  void restore();
  /// Frees what restore() has gathered. What code has written is kept; all ranks write the same.
  void release();
  /// Takes what code has written to gathered parameters into this rank's slices.
  void take_written();
  /// Call it before the slices are updated: gathered parameters are old.
  void begin_update();
  /// The slice of this bucket has its new values.
  void updated(std::size_t bucket);

  /// The next backward is the last one of the step.
  void watch() { last_ = true; }
  /// That backward has ended: until finish(), another one throws Error when it comes to a gradient
  /// that was sent.
  void backward_ended() { ended_ = last_; }
  /// Waits until every slice has the sum of the step. reached: 1 for a parameter that had a
  /// gradient on this rank. Returns the error of another backward that was refused, or "".
  std::string finish(std::vector<double>& reached);

 private:
  struct Use {
    std::vector<std::size_t> buckets;  ///< of its units, in ascending order
    bool read_in_backward = true;
    // Of the last use in forward:
    const Use* next_in_backward = nullptr;  ///< the next one of another unit that backward reads
    bool continues_unit = false;            ///< the next one that backward reads is of this unit
  };
  struct State {
    bool whole = false;  ///< the group has one rank: nothing moves
    bool kept = false;   ///< gathered from its first use until the update
    std::uint32_t version = 0;
    // Parameters on their way.
    bool gathering = false;
    Tensor arriving;
    Work gather;
    // Gradients.
    int open_uses = 0;      ///< uses in forward whose backward has not come
    bool launched = false;  ///< in this step
    bool summed = false;    ///< the slice holds a sum of this step
    bool in_flight = false;
    Tensor part;  ///< of a further micro-batch, to be added to the slice
    Work sum;
    std::vector<Work> next_sums;  ///< over replicas and tp
  };
  class Weights;
  class Gradients;

  Use& use_of(const nn::Module& part);
  const Use* follow(const Use& now, bool begins);
  void expect_backward(Use& now);
  void leave(const Use& now, const Use* next);
  void begin_backward(const Use& now, const Use* next);
  void end_backward(const Use& now, bool continues);

  void arrive(const Use& now);
  void prefetch(const Use& now, const Use* next);
  void start_gather(std::size_t bucket);
  void finish_gather(std::size_t bucket);
  void take_written(std::size_t bucket);
  void free_weights(std::size_t bucket);
  void drop(std::size_t bucket);

  void begin_gradient(std::size_t bucket);
  void note_reached(std::size_t bucket);
  void launch(std::size_t bucket);
  void retire(std::size_t bucket);
  void begin_next_sums();

  std::vector<Bucket>& buckets_;
  const NamedTensors& parameters_;
  const DdpOptions& options_;
  std::vector<State> states_;
  std::vector<double> reached_;
  std::unordered_map<const nn::Module*, Use> uses_;
  std::unordered_map<const TensorImpl*, std::size_t> bucket_of_;
  const Use* current_ = nullptr;  ///< what forward uses now
  bool current_taped_ = false, current_recorded_ = false;
  const Use* ahead_ = nullptr;      ///< gathered ahead
  const Use* continued_ = nullptr;  ///< backward is to read its unit once more
  std::vector<const Use*> reads_;   ///< of this forward, what backward reads
  std::vector<const Use*> order_;   ///< of a training step's forward
  std::size_t place_ = 0;           ///< in order_
  std::size_t learned_ = 0;         ///< length of order_ when this forward began; 0: it has changed
  bool restored_ = false, last_ = false, ended_ = false;
  std::string late_;                              ///< the error of a backward that was refused
  std::vector<std::size_t> flights_, next_sums_;  ///< in the order of launch
};

namespace testing {

/// Calls f, once, where the calling thread would start its gather of a unit number `gather` from
/// now, from 0: other ranks are in that gather, or come to it.
void at_gather(std::int64_t gather, std::function<void()> f);

}  // namespace testing
}  // namespace weft::distributed
