#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "weft/autograd/tape.h"
#include "weft/distributed/bucket_layout.h"
#include "weft/distributed/device_mesh.h"
#include "weft/nn/fp8.h"
#include "weft/nn/module.h"
#include "weft/optim/clip.h"

namespace weft::distributed {

class Fsdp;

struct DdpOptions {
  std::int64_t bucket_size = 0;   ///< elements that close a bucket; 0: default_bucket_size()
  DType grad_dtype = DType::f32;  ///< gradient dtype, f32 or bf16; f64 for f64 parameters
  bool overlap = true;            ///< false: finish() sends all buckets, with the same bits
  bool shard = false;             ///< for a ShardedOptimizer: reduce-scatter instead of all-reduce
  /// A rank's slice of a bucket is a multiple of this power of two, up to 64. With kScaleBlock,
  /// e4m3 states have the same blocks as without `shard`.
  std::int64_t slice_multiple = 1;
  /// With `shard`: weights of FP8 products are held as FP8 codes by every rank and as bf16 by their
  /// owner alone; see Fp8Gather. The recipe is not that of blocks.
  std::optional<fp8::Recipe> fp8_weights = {};
  /// With `shard`: gradients and parameters are sharded too, by units, see Fsdp; bucket_size is not
  /// used. Call ParallelOptimizer::wait(part) from the model's before_use.
  bool fsdp = false;
  /// With `fsdp`: the parameters of so many units, in the order of the model, are freed after each
  /// use; those of the rest stay until the update. Below 0: of all (ZeRO stage 3); 0: of none
  /// (stage 2).
  std::int64_t reshard_depth = -1;
  /// With `fsdp`, for a model whose parameters are on the meta device: gives some of them memory on
  /// `device` and values, one unit after another, so that no rank ever holds the whole model.
  struct Deferred {
    Device device;
    std::function<void(const std::vector<Tensor>& parameters)> make;
  };
  std::optional<Deferred> deferred = {};
  bool check_finite = false;  ///< throw if a gradient is not finite, naming the parameter
  bool count_zeros = false;   ///< see zeros()
  /// Parameters that need no gradient now get neither a bucket nor a state, and do not train later.
  /// Not with `fsdp`, which shards all of them.
  bool skip_frozen = false;
};

/// The parameters of a model that get gradients and states.
NamedTensors updated_parameters(const nn::Module& model, const DdpOptions& options);

/// Sums the gradients of a model over data-parallel ranks while backward runs.
///
/// Every parameter gets a main_grad, a view into a flat bucket. When the last gradient of a bucket
/// is ready, its reduction starts: over dp_cp for dense parameters, over edp for experts, and then
/// over tp_grad (etp_grad) where each rank sees only some of the tokens. Buckets are sent in the
/// same order on every rank, whatever order gradients arrive in. Sums are not scaled: divide the
/// loss by the count of the whole batch before backward.
///
///   Ddp ddp(model, mesh, layout);
///   for (each step) {
///     ddp.zero_grad();
///     for (each micro-batch) {
///       Tape tape;
///       Tensor loss = ...;
///       if (it is the last one) ddp.watch(tape);
///       loss.backward(one over the global count);
///     }
///     const optim::GradClip clip = ddp.finish(max_norm);
///     optimizer.step(clip);
///   }
///
/// If no rank has a gradient of a parameter in any micro-batch, the parameter has none after
/// finish(), and the optimizer leaves it and its state unchanged. If any rank has one, all ranks
/// update the parameter. Values written into main_grads by hand count as gradients of every
/// parameter of their bucket, so write all of them; if backward reaches one, it overwrites them.
///
/// Every rank runs the same collectives, whichever parameters get a gradient: one per bucket, one
/// more per bucket where tokens are split over tp, and one for the norm, which also carries the
/// flags of the parameters that have gradients. A forward pass that itself communicates must use
/// the same parameters on every rank, so that the ranks agree when a bucket is ready.
class Ddp {
 public:
  /// Called by every rank of the mesh. `layout` is the result of parallelize(). Do not change the
  /// model's dtype or device afterwards.
  /// Throws Error on a model without parameters, on parameters that are not contiguous or are on
  /// several devices, on a pp other than 1, unless grad_dtype is f32 or bf16, and on a bucket_size
  /// below 0.
  Ddp(nn::Module& model, const DeviceMesh& mesh, const Layout& layout = {},
      const DdpOptions& options = {});
  /// Removes the parameters' main_grads, unless a later Ddp or optimizer has given them its own.
  /// With `fsdp` the parameters have no memory afterwards: see Fsdp.
  ~Ddp();
  Ddp(const Ddp&) = delete;
  Ddp& operator=(const Ddp&) = delete;

  /// Call it on the tape of the last micro-batch, before backward: buckets are sent while that
  /// backward runs. A parameter that gets no gradient there contributes zeros; the first time this
  /// happens, a line is logged. The Ddp must outlive the tape's backward. If backward throws, on
  /// every rank, call finish() before anything else. Run no other backward before finish():
  /// finish() throws Error if one wrote a bucket that was in flight, and with `fsdp` so does that
  /// backward where it comes to a gradient that was sent. Throws Error if finish() was not called
  /// since the last watch().
  void watch(Tape& tape);
  /// Waits until every gradient is summed (with `shard`: this rank's slices). Returns the norm over
  /// all parameters of the job, counting each value once, and the clip scale. Both are equal on
  /// every rank; the norm is NaN if the gradients of any rank are not finite. max_norm 0 sets no
  /// limit.
  /// With check_finite, throws Error (as backward does) that names the first parameter whose
  /// gradient is not finite, and this rank.
  optim::GradClip finish(double max_norm = 0);
  /// Marks the buckets as empty: the next backward overwrites them, and until then they hold the
  /// values of the last step. Throws Error while they are in flight, that is before finish().
  void zero_grad();

  /// Number of gradient values of the job that were exactly 0 at the last finish(), one f64 on the
  /// device. A parameter that had no gradient adds none. Throws Error without count_zeros.
  Tensor zeros() const;
  /// The Euclidean norm of values distributed over ranks. `squares` is the sum of squares (f64, one
  /// element) of the values that this rank counts, or null for none. One collective.
  Tensor joint_norm(const Tensor& squares) const;
  /// Number of leading elements of the parameter that this rank counts. Other ranks of tp (etp) may
  /// hold copies of the rest.
  std::int64_t counted(std::size_t parameter) const;

  const DeviceMesh& mesh() const { return mesh_; }
  const Layout& layout() const { return layout_; }
  const DdpOptions& options() const { return options_; }
  const NamedTensors& parameters() const { return parameters_; }

  /// A bucket on this rank.
  struct Bucket {
    BucketLayout layout;
    ProcessGroup* group = nullptr;         ///< its gradients are summed over this group ...
    std::vector<ProcessGroup*> then = {};  ///< ... and then over these
    int replica = 0;  ///< with dp_replicate, which of the replicas of the slices this rank has
    Tensor grad;      ///< flat
    Tensor slice;     ///< this rank's slice of grad
    /// With `shard`: the parameters, flat. Of codes and with `fsdp`, slices have memory of their
    /// own.
    Tensor param, param_slice;
    std::vector<OwnedRange> owned;             ///< in the slice
    std::vector<Tensor> counted;               ///< owned gradients that no other rank counts
    std::vector<std::size_t> counted_of = {};  ///< the parameter of each
    std::vector<Tensor> whole;                 ///< gradient of each parameter
    std::size_t missing = 0;                   ///< gradients not yet ready
    std::uint32_t sent_at = 0;                 ///< version of grad when its sums were begun
  };
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// With fp8_weights: the layers whose weights are held as codes.
  const std::vector<nn::Fp8Layer>& fp8_layers() const { return fp8_layers_; }
  /// Null without `fsdp`.
  Fsdp* fsdp() const { return fsdp_.get(); }

 private:
  void open(BucketLayout layout);
  void take_parameters(Bucket& b);
  void gradient_came(const Tensor& leaf);
  void backward_ended();
  void launch_ready();
  void launch(Bucket& b);
  void check_finite(const std::vector<Tensor>& gradients,
                    const std::vector<std::size_t>& parameters) const;
  void check_bucket(const Bucket& b) const;
  void check_slice(const Bucket& b) const;
  bool has_main_grads(const Bucket& b, std::size_t parameter) const;
  void measure(const Bucket& b);
  void add_up_zeros();
  void mark_empty();
  void note_reached(const Bucket& b);
  void clear_unreached(const Bucket& b);
  // Each returns the error of a backward that ran where none must, or "".
  std::string finish_units();
  std::string finish_buckets();
  void begin_sums();
  void settle_reached();
  bool is_on_many_gpus() const;

  const DeviceMesh& mesh_;
  Layout layout_;
  Device device_;
  DdpOptions options_;
  NamedTensors parameters_;
  std::vector<nn::Fp8Layer> fp8_layers_;
  std::vector<Bucket> buckets_;
  std::unique_ptr<Fsdp> fsdp_;
  struct Place {
    std::size_t parameter, bucket;
    bool came;
  };
  std::unordered_map<const TensorImpl*, Place> places_;
  std::vector<Work> works_;  ///< at most three per bucket
  std::size_t next_ = 0;     ///< first bucket not yet sent
  bool watching_ = false;    ///< between watch() and finish()
  bool has_warned_ = false;
  /// f64: sum of squares, zero count, and per parameter the number of ranks that have a gradient;
  /// with count_zeros then the zeros of each parameter.
  Tensor sums_;
  Tensor own_sums_;              ///< this rank's contribution to sums_
  std::vector<double> reached_;  ///< host copy of its flags
  bool reached_changed_ = false;
};

}  // namespace weft::distributed
