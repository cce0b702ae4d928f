#pragma once
#include <string>

namespace weft::io {

/// Plots `loss`, and `val_loss` if present, over `step` from a metrics file as a self-contained
/// SVG, with the smoothed loss over the pale curve of every step, and the best value of each
/// curve. Nulls leave gaps. Steps have a log axis if most of the fall is in their first tenth. A
/// plot without points says so.
/// Throws Error when a file cannot be read or written.
void write_loss_svg(const std::string& metrics_path, const std::string& svg_path,
                    const std::string& title = "Training loss");

}  // namespace weft::io
