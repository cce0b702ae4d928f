#pragma once
#include <functional>
#include <string>
#include <utility>

#include "weft/train/flags.h"
#include "weft/train/ranks.h"

namespace weft::train {

/// Runs f, the program's work, and returns its status. An error prints one line to standard error
/// and gives its own status, and so does output that is lost. A closed terminal or an exited reader
/// does not end the program.
int guarded(const std::string& program, const std::function<int()>& f);

/// The main() of a training program: flags, ranks and errors. f is called once on every rank and
/// creates the model and its Trainer. `what` describes the program; --help prints it first.
///
///   int main(int argc, char** argv) {
///     return train::launch("Trains a classifier.", train::Options{.out = "runs/mine"}, argc, argv,
///                          [](const train::Options& options, const train::Ranks& ranks) {
///                            Classifier model;
///                            train::Trainer trainer(model, options, loss_of(model), ranks);
///                            return trainer.fit(training_data());
///                          });
///   }
template <class O, class F>
int launch(const char* what, O options, int argc, char** argv, F f) {
  return guarded(options.program, [&] {
    CommandLine line(what, options.program);
    if (!parse_options(line, options, expand_config(argc, argv, {options.out}))) return 0;
    options.config = to_toml(options);
    return run_on_ranks(options,
                        [&](const Ranks& ranks) { return f(std::as_const(options), ranks); });
  });
}

}  // namespace weft::train
