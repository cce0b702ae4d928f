#pragma once
#include <string>

namespace weft::io {

/// Plots `loss`, and `val_loss` if present, over `step` from a metrics file as a self-contained
/// SVG. Nulls leave gaps. A plot without points says so.
/// Throws Error when a file cannot be read or written.
void write_loss_svg(const std::string& metrics_path, const std::string& svg_path,
                    const std::string& title = "Training loss");

}  // namespace weft::io
