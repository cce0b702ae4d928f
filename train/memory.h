#pragma once
#include <functional>

#include "weft/train/options.h"
#include "weft/train/task.h"
#include "weft/train/train_step.h"

namespace weft::train {

/// Throws Error (Fault::user) unless the GPU, or for the CPU the machine and this process's control
/// group, has `bytes` of memory. `what` names what needs it: "the model".
void check_memory(double bytes, const char* what, Device device);

/// Checks the memory that any run with these options needs on its CPU or GPU: weights and
/// gradients, and one activation of a micro-batch. Computed by formula, so absurd sizes are
/// rejected before anything is allocated.
void check_least_memory(const Options& options, double parameters, double activation_of_row);

/// Runs a real step on the meta device, twice (the second has optimizer state), and returns the
/// peak number of bytes that rank `rank` of `ranks` will have on its device; on the CPU with the
/// tables on the host that a step needs on any device. The task's model is on the meta device.
/// `rows` holds any number of training rows. 0 ranks: a single-rank run.
std::int64_t predict_peak_bytes(const Task& task, const Options& options, const data::Batch& rows,
                                int ranks, int rank);

/// The bytes of the host's memory that this rank's copies take while a checkpoint is written in the
/// background; 0 if none is.
std::int64_t copied_by_save(TrainStep& step, const Options& options);

/// The same for rank `rank` of `ranks`, on the meta device; arguments as predict_peak_bytes().
std::int64_t predict_copied_by_save(const Task& task, const Options& options,
                                    const data::Batch& rows, int ranks, int rank);

/// check_memory() for a run on the CPU whose ranks each need `bytes_of_rank()`. Does nothing for
/// other devices or for ranks in other processes, whose memory this process cannot see.
void check_peak_memory(const Options& options, const std::function<std::int64_t()>& bytes_of_rank);

}  // namespace weft::train
