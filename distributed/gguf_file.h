#pragma once
#include <string>

#include "weft/distributed/shard_files.h"
#include "weft/io/gguf.h"
#include "weft/nn/gpt_config.h"

namespace weft::distributed {

inline constexpr Word<io::GgufType> kGgufTypeWords[] = {{"f32", io::GgufType::f32},
                                                        {"f16", io::GgufType::f16},
                                                        {"bf16", io::GgufType::bf16},
                                                        {"q8_0", io::GgufType::q8_0}};

struct GgufSaveOptions {
  std::string family = {};  ///< see nn::gguf_model()
  /// Of matrices; norms, biases and routers are f32, and with q8_0 matrices whose rows are no
  /// multiple of 32 are f16.
  io::GgufType type = io::GgufType::f16;
  io::GgufMetadata tokenizer = {};             ///< after the model's
  std::int64_t piece = std::int64_t{1} << 24;  ///< about so many values are in memory at a time
};

/// Writes a model as a GGUF file for llama.cpp. Memory: a piece, or a head's rows, or, where
/// the files store it in another order, a matrix.
/// Throws Error as nn::gguf_model(), when tensors are missing or have no place in the file, MTP
/// layers aside, and when writing fails.
void save_gguf(const std::string& path, const nn::GptConfig& config, const ShardFiles& files,
               const GgufSaveOptions& options = {});

}  // namespace weft::distributed
