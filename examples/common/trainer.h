#pragma once
#include "weft/examples/common/options.h"

namespace weft::train {

/// A whole training run: data, model, loop, evaluation, checkpoints, metrics, plot.
/// Returns the exit status: 0; 3 after a non-finite loss or gradient, which leaves the weights and
/// the last checkpoint as they were; 130 after Ctrl-C and a saved checkpoint.
/// Throws Error on a user's mistake and on failing files.
int train(const Options& options);

/// The main() of a trainer whose options start from `defaults`: messages go to standard error, and
/// an Error's line ends the program with its status.
int train_main(const Options& defaults, int argc, char** argv);

}  // namespace weft::train
