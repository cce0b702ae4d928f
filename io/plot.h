#pragma once
#include <string>

namespace weft::io {

/// Draws `loss`, and `val_loss` where there is one, over `step` from a metrics file as a
/// self-contained SVG. Nulls leave a gap. With no point at all the picture says so.
/// Throws Error when a file cannot be read or written.
void write_loss_svg(const std::string& metrics_path, const std::string& svg_path,
                    const std::string& title = "Training loss");

}  // namespace weft::io
