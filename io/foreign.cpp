#include "weft/io/foreign.h"

#include <algorithm>
#include <string_view>

namespace weft::io {
namespace {

using namespace std::string_view_literals;

enum class Foreign : std::uint8_t { none, torch, npz, npy, safetensors };

// By its first bytes: what a program writes under a name is not always what the name says.
Foreign kind_of(const InputFile& file) {
  std::string start(static_cast<std::size_t>(std::min<std::int64_t>(file.size(), 256)), '\0');
  file.read(0, start.data(), static_cast<std::int64_t>(start.size()));
  const std::string_view s = start;
  if (s.starts_with("\x93NUMPY"sv)) return Foreign::npy;
  // A zip archive begins with the name of its first file: archive/data.pkl, or arr_0.npy.
  if (s.starts_with("PK\3\4"sv)) {
    if (s.find(".npy"sv) != s.npos) return Foreign::npz;
    return s.find("/data.pkl"sv) != s.npos ? Foreign::torch : Foreign::none;
  }
  if (s.size() > 8 && s[8] == '{') return Foreign::safetensors;
  // Pickle protocols 2 to 5, as torch.save() wrote before version 1.6.
  const bool pickle = s.size() >= 2 && s[0] == '\x80' && s[1] >= 2 && s[1] <= 5;
  return pickle ? Foreign::torch : Foreign::none;
}

}  // namespace

void refuse_foreign(const InputFile& file, const char* wanted) {
  const Foreign kind = kind_of(file);
  const bool npy = std::string_view(wanted) == "npy";
  const std::string& path = file.path();
  check_system(kind != Foreign::npy || npy,
               "{}: '{}' is a NumPy array: read it with io::load_npy()", wanted, path);
  check_system(kind != Foreign::safetensors || !npy,
               "{}: '{}' is a safetensors file: read it with io::load_safetensors()", wanted, path);
  check_system(kind != Foreign::npz,
               "{}: '{}' is a .npz archive; convert it: python3 -c \"import numpy, "
               "safetensors.numpy as s; s.save_file(dict(numpy.load('{}')), '{}.safetensors')\"",
               wanted, path, path, path);
  check_system(kind != Foreign::torch,
               "{}: '{}' is a PyTorch pickle; convert it: python3 -c \"import torch, "
               "safetensors.torch as s; s.save_file({k: v.clone().contiguous() for k, v in "
               "torch.load('{}', map_location='cpu').items()}, '{}.safetensors')\"",
               wanted, path, path, path);
}

}  // namespace weft::io
