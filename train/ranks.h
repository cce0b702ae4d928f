#pragma once
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "weft/distributed/device_mesh.h"
#include "weft/distributed/world.h"
#include "weft/train/options.h"

namespace weft::train {

/// How many ranks a plan on the meta device is for.
int ranks_of(const Options& options);

/// The ranks of a run, seen from one of them; a run alone has one.
class Ranks {
 public:
  /// Called by every rank together. Throws Error when the degrees do not fit their number, or ranks
  /// were started with different options.
  Ranks(distributed::World& world, const Options& options);
  /// The same with this rank's own device, and what moves what lies on the host where `world` moves
  /// a GPU's tensors only.
  Ranks(distributed::World& world, distributed::World& host, Device device, const Options& options);
  /// A run alone, on the device of the options. Throws Error on options for several ranks.
  static Ranks alone(const Options& options);

  /// Of tensors on device().
  distributed::World& world() const { return world_; }
  /// The same ranks, for what lies on the host.
  distributed::World& host() const { return host_; }
  Device device() const { return device_; }
  const distributed::DeviceMesh& mesh() const { return mesh_; }
  /// Made by alone(): there is no backend.
  bool is_alone() const { return own_ != nullptr; }
  int rank() const { return world_.rank(); }
  int size() const { return world_.size(); }
  /// The rank that prints and writes what is there once. On the meta device, where one rank stands
  /// for all, it is that one.
  bool is_first() const { return rank() == 0 || imagined_; }
  /// Runs f on the first rank. Throws on every rank the Error that f throws there.
  void on_first(const std::function<void()>& f) const;
  /// The value of the first rank, on all of them.
  std::int64_t of_first(std::int64_t own) const;
  /// The rows of a step, and the first one, that this rank works on. Ranks of one data rank share
  /// them.
  std::int64_t rows() const { return rows_; }
  std::int64_t first_row() const { return data_rank() * rows_; }
  /// Ranks that work on different rows of the batch, and the place of this one among them.
  int data_ranks() const { return mesh_.dp().size(); }
  int data_rank() const { return mesh_.dp().rank(); }
  /// Of the ranks that share rows, is this the one whose sums count?
  bool counts_rows() const { return mesh_.tp().rank() == 0 && mesh_.cp().rank() == 0; }
  /// Sums values over all ranks, in place. On a GPU the host does not wait.
  void add_up(const Tensor& values) const;

 private:
  Ranks(std::unique_ptr<distributed::World> own, const Options& options);

  std::unique_ptr<distributed::World> own_;  ///< of a run alone
  distributed::World &world_, &host_;
  const Device device_;
  const bool imagined_;
  distributed::DeviceMesh mesh_;
  std::int64_t rows_;
};

/// What a program does with an error that ends it: says it, once for all ranks of a job that a
/// launcher started (see distributed::end_with_error), and returns the status to exit with.
int end_process(const std::string& program, std::unique_ptr<distributed::World> world,
                const std::exception& e);

/// Throws Error when --device, --backend, --ranks and the degrees contradict each other or what a
/// launcher has started. Opens nothing.
void check_ranks(const Options& options);

/// Runs f once for each rank that the options ask for: on threads of this process (--ranks), in
/// this process as one of those that a launcher started, as a rank that --device meta imagines, or
/// alone. On GPUs each rank has a stream of its own. Random numbers of every rank start from the
/// seed of the options: modules that ranks make have the same values. Returns f's status: that of
/// the first rank where they differ. What f throws in a process of several is said here, and its
/// status returned. Throws Error as check_ranks().
int run_on_ranks(const Options& options, const std::function<int(const Ranks&)>& f);

}  // namespace weft::train
