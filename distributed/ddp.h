#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "weft/autograd/tape.h"
#include "weft/distributed/bucket_layout.h"
#include "weft/distributed/device_mesh.h"
#include "weft/nn/module.h"
#include "weft/optim/clip.h"

namespace weft::distributed {

struct DdpOptions {
  std::int64_t bucket_size = 0;   ///< elements that close a bucket; 0: default_bucket_size()
  DType grad_dtype = DType::f32;  ///< of the buckets, or bf16; f64 parameters have f64 ones
  bool overlap = true;            ///< false: everything is sent by finish(), with the same bits
  bool shard = false;             ///< for a ShardedOptimizer: each rank receives its slices only
  bool check_finite = false;      ///< name the parameter whose gradient is not finite, and stop
  bool count_zeros = false;       ///< see zeros()
};

/// Gradients of one model summed over data-parallel ranks while backward still runs.
///
/// Every parameter gets a main_grad, a view into a flat bucket. When the last gradient of a bucket
/// is there, its sum over the ranks is started: over dp_cp for dense parameters, over edp for
/// experts, and over tp (etp) after that where a rank sees only some of the tokens. Buckets go in
/// the same order on every rank, however gradients arrive. There is no other factor: a loss is
/// divided by the count of the whole batch before backward.
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
/// A parameter that no rank has a gradient of, in none of the micro-batches, has none after
/// finish(): an optimizer leaves it and its state as they are. One that some rank has a gradient of
/// is updated on all ranks alike. What is written into a main_grad by hand counts for all
/// parameters of its bucket, unless a backward has reached one of them.
///
/// Every rank makes the same collectives, whatever it owns, and whichever parameter gets a
/// gradient: one a bucket, one more where tokens are split over tp, one for the norm, with which
/// travels who has gradients. A forward pass that itself communicates must use the same parameters
/// on every rank, or none would know when a bucket is due.
class Ddp {
 public:
  /// Called by every rank of the mesh. `layout` says what parallelize() has made of the model.
  /// The model must not change dtype or device afterwards.
  /// Throws Error on a model without parameters, on parameters that are not contiguous or on
  /// several devices, unless grad_dtype is f32 or bf16, and when bucket_size is below 0.
  Ddp(nn::Module& model, const DeviceMesh& mesh, const Layout& layout = {},
      const DdpOptions& options = {});
  /// The parameters have no main_grad afterwards.
  ~Ddp();
  Ddp(const Ddp&) = delete;
  Ddp& operator=(const Ddp&) = delete;

  /// To be called on the tape of the last micro-batch before its backward: buckets are sent during
  /// that. A parameter that gets no gradient here adds zeros; the first time, a line is logged.
  /// The Ddp has to outlive the tape's backward. When that throws, on every rank alike, finish()
  /// has to be called before anything else. Throws Error when finish() has not been called since
  /// the last time.
  void watch(Tape& tape);
  /// Waits until every gradient is summed (with `shard`: this rank's slices). Returns the norm over
  /// all parameters of the job, each value counted once, and its scale; the same on every rank and
  /// NaN there if one rank's gradients are not finite. max_norm 0 sets no limit.
  /// Throws Error with check_finite (as backward then does): of the first parameter whose gradient
  /// is not finite, with this rank.
  optim::GradClip finish(double max_norm = 0);
  /// Zeroes the buckets. Throws Error while they are on their way: before finish().
  void zero_grad();

  /// With count_zeros: how many gradient values were exactly 0 at the last finish(), in all of the
  /// job: one f64 on the device. Throws Error without.
  Tensor zeros() const;
  /// The Euclidean norm of values that lie on several ranks, from the sum of squares (f64, one
  /// element) of those that this rank has to count; null for none. One collective.
  Tensor joint_norm(const Tensor& squares) const;
  /// Other ranks of tp (etp) may hold the same values of a parameter: so many of its first elements
  /// are this rank's to count.
  std::int64_t counted(std::size_t parameter) const;

  const DeviceMesh& mesh() const { return mesh_; }
  const Layout& layout() const { return layout_; }
  const DdpOptions& options() const { return options_; }
  const NamedTensors& parameters() const { return parameters_; }

  /// A bucket on this rank.
  struct Bucket {
    BucketLayout layout;
    ProcessGroup* group = nullptr;  ///< that its gradients are summed over
    ProcessGroup* then = nullptr;   ///< and the one after that, or null
    Tensor grad;                    ///< flat
    Tensor slice;                   ///< of grad: what this rank owns
    Tensor param, param_slice;      ///< with `shard`: the parameters themselves, flat
    std::vector<OwnedRange> owned;  ///< in the slice
    std::vector<Tensor> counted;    ///< owned gradients that no other rank counts
    std::vector<Tensor> whole;      ///< each parameter's gradient
    std::size_t missing = 0;        ///< gradients that have not come yet
  };
  const std::vector<Bucket>& buckets() const { return buckets_; }

 private:
  void open(BucketLayout layout);
  void take_parameters(Bucket& b);
  void gradient_came(const Tensor& leaf);
  void backward_ended();
  void launch_ready();
  void launch(Bucket& b);
  void check_bucket(const Bucket& b) const;
  void measure(const Bucket& b);
  void mark_empty();
  void note_reached(const Bucket& b);
  void begin_sums();
  void settle_reached();
  bool is_on_many_gpus() const;

  const DeviceMesh& mesh_;
  Layout layout_;
  DdpOptions options_;
  NamedTensors parameters_;
  std::vector<Bucket> buckets_;
  struct Place {
    std::size_t parameter, bucket;
    bool came;
  };
  std::unordered_map<const TensorImpl*, Place> places_;
  std::vector<Work> works_;  ///< two a bucket at most
  std::size_t next_ = 0;     ///< the first bucket not yet sent
  bool watching_ = false;    ///< between watch() and finish()
  bool has_warned_ = false;
  /// f64: squares, zeros, and for each parameter how many ranks have a gradient of it.
  Tensor sums_;
  Tensor own_sums_;              ///< what sums_ begins with on this rank
  std::vector<double> reached_;  ///< its last part, as the host has it
  bool reached_changed_ = false;
};

}  // namespace weft::distributed
