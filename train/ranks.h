#pragma once
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "weft/distributed/device_mesh.h"
#include "weft/distributed/world.h"
#include "weft/train/options.h"

namespace weft::train {

/// The number of ranks that a plan on the meta device covers.
int ranks_of(const Options& options);

/// The degrees of parallelism that the options ask for.
distributed::Degrees degrees_of(const Options& options);

/// The ranks of a run, as seen by one of them. A single-rank run has one.
class Ranks {
 public:
  /// Every rank must call it. Throws Error if the degrees do not match the number of ranks, or
  /// ranks were started with different options.
  Ranks(distributed::World& world, const Options& options);
  /// As above, with this rank's device; `host` moves host tensors when `world` only moves a GPU's.
  Ranks(distributed::World& world, distributed::World& host, Device device, const Options& options);
  /// A single-rank run on the options' device. Throws Error on options for several ranks.
  static Ranks alone(const Options& options);

  /// Communicates tensors on device().
  distributed::World& world() const { return world_; }
  /// The same ranks; communicates tensors on the host.
  distributed::World& host() const { return host_; }
  Device device() const { return device_; }
  const distributed::DeviceMesh& mesh() const { return mesh_; }
  /// True if made by alone(): there is no backend.
  bool is_alone() const { return own_ != nullptr; }
  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }
  /// True on the rank that prints and writes files: rank 0; on meta the simulated rank.
  bool is_first() const { return rank() == 0 || imagined_; }
  /// Runs f on the first rank. An Error that f throws there is thrown on every rank.
  void on_first(const std::function<void()>& f) const;
  /// Returns the first rank's value on all ranks.
  std::int64_t of_first(std::int64_t own) const;
  /// The number of rows of a step that this rank processes, and the first of them. Ranks with the
  /// same data_rank() share them.
  std::int64_t rows() const { return rows_; }
  std::int64_t first_row() const { return data_rank() * rows_; }
  /// The number of ranks with different rows of the batch, and this rank's index among them.
  int data_ranks() const { return mesh_.dp().size(); }
  int data_rank() const { return mesh_.dp().rank(); }
  /// True on the one rank, among those that share rows, whose sums count.
  bool counts_rows() const { return mesh_.tp().rank() == 0 && mesh_.cp().rank() == 0; }
  /// Sums values over all ranks, in place. On a GPU the host does not wait.
  void add_up(const Tensor& values) const;
  /// The largest of each value over all ranks, in place.
  void largest(const Tensor& values) const;

 private:
  Ranks(std::unique_ptr<distributed::World> own, const Options& options);

  std::unique_ptr<distributed::World> own_;  ///< of a single-rank run
  distributed::World &world_, &host_;
  const Device device_;
  const bool imagined_;
  distributed::DeviceMesh mesh_;
  std::int64_t rows_;
};

/// Handles an error that ends the program: reports it, once for all ranks of a launched job (see
/// distributed::end_with_error), and returns the exit status.
int end_process(const std::string& program, std::unique_ptr<distributed::World> world,
                const std::exception& e);

/// Throws Error if --device, --backend, --ranks and the degrees contradict each other or the
/// launcher. Opens no connection.
void check_ranks(const Options& options);

/// Runs f once for each rank that the options ask for: on threads of this process (--ranks), as
/// this process of a launched job, as the rank that --device meta simulates, or as a single rank.
/// On GPUs each rank has its own stream. Every rank seeds its random numbers with the options'
/// seed, so modules get equal values on all ranks. Returns f's status, the first rank's if they
/// differ. In a launched job an error of f is reported here and becomes the status. Throws Error as
/// check_ranks().
int run_on_ranks(const Options& options, const std::function<int(const Ranks&)>& f);

}  // namespace weft::train
