#pragma once
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "weft/distributed/device_mesh.h"
#include "weft/distributed/world.h"
#include "weft/examples/common/options.h"

namespace weft::train {

/// How many ranks a plan on the meta device is for.
int ranks_of(const Options& options);

/// The ranks of a run, seen from one of them.
class Ranks {
 public:
  /// Called by every rank together. Throws Error when the degrees do not fit their number, or ranks
  /// were started with different options.
  Ranks(distributed::World& world, const Options& options);
  /// The same with this rank's own device, and what moves what lies on the host where `world` moves
  /// a GPU's tensors only.
  Ranks(distributed::World& world, distributed::World& host, Device device, const Options& options);

  /// Of tensors on device().
  distributed::World& world() const { return world_; }
  /// The same ranks, for what lies on the host.
  distributed::World& host() const { return host_; }
  Device device() const { return device_; }
  const distributed::DeviceMesh& mesh() const { return mesh_; }
  /// The one that prints and writes what there is once: on the meta device the one that there is.
  bool is_first() const { return world_.rank() == 0 || imagined_; }
  /// Runs f on the first rank. Throws on every rank the Error that f throws there.
  void on_first(const std::function<void()>& f) const;
  /// The value of the first rank, on all of them.
  std::int64_t of_first(std::int64_t own) const;
  /// Ranks that work on different rows of the batch, and the place of this one among them.
  int data_ranks() const { return mesh_.dp().size(); }
  int data_rank() const { return mesh_.dp().rank(); }
  /// Does this rank's count for those that work on the same rows?
  bool speaks_for_its_rows() const { return mesh_.tp().rank() == 0 && mesh_.cp().rank() == 0; }
  /// Sums values over all ranks, in place. Those on a GPU nobody waits for.
  void add_up(const Tensor& values) const {
    (values.device().is_cpu() ? host_ : world_).all().all_reduce(values).wait();
  }

 private:
  distributed::World &world_, &host_;
  const Device device_;
  const bool imagined_;
  distributed::DeviceMesh mesh_;
};

/// What a program does with an error that ends it: says it, once for all ranks of a job that a
/// launcher started (see distributed::end_with_error), and returns the status to exit with.
int end_process(const std::string& program, std::unique_ptr<distributed::World> world,
                const std::exception& e);

/// Throws Error when --device, --backend, --ranks and the degrees contradict each other or what a
/// launcher has started. Opens nothing.
void check_ranks(const Options& options);

/// Runs f once for each rank that the options ask for: on threads of this process (--ranks), in
/// this process as one of those that a launcher started, as a rank that --device meta imagines, or,
/// with null, alone. On GPUs each rank has a stream of its own. Returns f's status: that of the
/// first rank where they differ. What f throws in a process of several is said here, and its status
/// returned. check_ranks() comes first.
int run_on_ranks(const Options& options, const std::function<int(Ranks*)>& f);

}  // namespace weft::train
