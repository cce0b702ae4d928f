#pragma once
#include <string>

#include "weft/io/json.h"

namespace weft::examples {

/// The text of a small file that came with a model. Throws Error (Fault::user) if it is larger than
/// any such file, before it is read.
std::string read_folder_file(const std::string& path);
/// The JSON in it. Throws Error (Fault::user).
io::Json read_folder_json(const std::string& path);
/// The chat template (Jinja) of a Hugging Face folder; empty if there is none.
/// Throws Error (Fault::user).
std::string chat_template_in(const std::string& folder);

}  // namespace weft::examples
