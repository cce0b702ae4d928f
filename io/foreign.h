#pragma once
#include "weft/io/file.h"

namespace weft::io {

/// Throws Error (Fault::system), with what to do, if the file is one that users take for a file of
/// the format `wanted` ("safetensors", "npy"): a pickle of PyTorch, .npz, .npy or .safetensors.
void refuse_foreign(const InputFile& file, const char* wanted);

}  // namespace weft::io
