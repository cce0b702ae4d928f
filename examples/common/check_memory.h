#pragma once
#include "weft/examples/common/options.h"

namespace weft::train {

/// Throws Error (Fault::user) unless the GPU, or else this machine and the control group of this
/// process, has so much memory. `what` needs it: "the model".
void check_memory(double bytes, const char* what, Device device);

/// The same for what any run with these options needs on its CPU or GPU: its weights with their
/// gradients, and one activation of the tokens in hand. By arithmetic alone, so that nothing is
/// allocated, or looped over, for numbers that are out of all proportion.
void check_least_memory(const Options& options);

/// The same for what a run on the CPU will have live at most, by a step on the meta device.
void check_peak_memory(const Options& options);

}  // namespace weft::train
