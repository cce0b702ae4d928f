#pragma once
#include <string>
#include <vector>

#include "weft/core/memory_trace.h"
#include "weft/io/json.h"
#include "weft/train/options.h"
#include "weft/train/step_schedule.h"
#include "weft/train/task.h"

namespace weft::train {

/// What a training step of one rank holds, computes and sends.
struct MemoryPlan {
  /// The first event of a phase of the step; see MemoryTrace.
  struct Mark {
    Phase phase;
    std::int64_t micro_batch;  ///< from 1; the update has that of the last one
    std::int64_t event;
  };
  struct Module {
    std::string name;
    LiveBytes live;
  };

  Device device;
  int ranks = 1, rank = 0;
  std::int64_t micro_batches = 1;
  std::int64_t parameters = 0;  ///< of this rank
  std::int64_t in_fp8 = 0;      ///< of these, multiplied in FP8
  std::int64_t in_experts = 0;  ///< of these, of experts
  LiveBytes peak;               ///< its total is the peak of the step
  std::vector<Module> modules;  ///< who had allocated what is live then, largest first
  std::int64_t peak_event = 0;  ///< of `course`
  LiveBytes before_backward;    ///< when the first backward begins
  double flops = 0;             ///< with what is recomputed
  std::int64_t bytes_sent = 0;  ///< to other ranks
  /// Out of the device's memory and back, by --offload. A step reads and writes all of the states.
  std::int64_t bytes_offloaded = 0;
  /// To the host's memory, while a checkpoint is written in the background; 0 if none is.
  std::int64_t bytes_copied = 0;
  std::vector<LiveBytes> course;  ///< of the step, after each allocation and free
  std::vector<Mark> marks;        ///< of `course`, in order

  /// The phase with the peak.
  const Mark& at_peak() const;
};

/// Plans a step as predict_peak_bytes() does, with the same arguments and the same peak.
MemoryPlan plan_memory(const Task& task, const Options& options, const data::Batch& rows, int ranks,
                       int rank);

/// Bytes per parameter by closed forms: the weight with its FP8 codes, its gradient, and the
/// optimizer's share, which --zero divides by the ranks that have the same parameters; --fsdp
/// divides all of them, and two units of gathered weights and of gradients come on top.
struct ParameterBytes {
  double weight = 0, gradient = 0, optimizer = 0;
  double total() const { return weight + gradient + optimizer; }
};
/// Of a rank's parameters, how many are multiplied in FP8, and how many are experts': these are on
/// the ranks of edp. FP8 weights count as spread evenly over both.
struct ParameterShares {
  double fp8 = 0, experts = 0;
};
ParameterBytes parameter_bytes(const Options& options, int ranks, ParameterShares shares = {});

/// The categories and modules of a plan in lines of text, and as JSON without the course.
std::string memory_table(const MemoryPlan& plan, const ParameterBytes& closed);
io::Json to_json(const MemoryPlan& plan);

}  // namespace weft::train
