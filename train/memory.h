#pragma once
#include <functional>

#include "weft/train/options.h"
#include "weft/train/task.h"

namespace weft::train {

/// Throws Error (Fault::user) unless the GPU, or else this machine and the control group of this
/// process, has so much memory. `what` needs it: "the model".
void check_memory(double bytes, const char* what, Device device);

/// The same for what any run with these options needs on its CPU or GPU: its weights with their
/// gradients, and one activation of a micro-batch. By arithmetic alone, so that nothing is
/// allocated, or looped over, for numbers that are out of all proportion.
void check_least_memory(const Options& options, double parameters, double activation_of_row);

/// A real step on the meta device, twice (the second one has the optimizer's state): the bytes that
/// rank `rank` of so many will have live at most on its device. The task's model is on the meta
/// device. `rows` has any number of rows of the training data. 0 ranks: a run alone.
std::int64_t predict_peak_bytes(const Task& task, const Options& options, const data::Batch& rows,
                                int ranks, int rank);

/// check_memory() for a run on the CPU, whose ranks each need `bytes_of_rank()`. Of runs elsewhere
/// this process cannot say, and does not ask.
void check_peak_memory(const Options& options, const std::function<std::int64_t()>& bytes_of_rank);

}  // namespace weft::train
