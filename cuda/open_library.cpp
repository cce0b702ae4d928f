#include "weft/cuda/open_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "weft/core/error.h"

namespace weft::cuda {
namespace {

std::string own_folder() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<const void*>(&own_folder), &info) || !info.dli_fname) return "";
  const std::string file = info.dli_fname;
  const std::size_t slash = file.rfind('/');
  return slash == std::string::npos ? "" : file.substr(0, slash + 1);
}

}  // namespace

void* open_library(const std::string& name, const char* what) {
  if (void* loaded = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD)) return loaded;
  std::string tried;
  const auto attempt = [&](const std::string& file) -> void* {
    if (void* p = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return p;
    tried += (tried.empty() ? "" : ", ") + file;
    return nullptr;
  };
  if (const std::string folder = own_folder(); !folder.empty())
    if (void* p = attempt(folder + name)) return p;
  if (const char* folder = std::getenv("WEFT_CUDA_LIBS"))
    if (void* p = attempt(std::string(folder) + "/" + name)) return p;
  if (void* p = attempt(name)) return p;
  check_system(false,
               "cuda: {} need {}, and it was not found; tried {}; set WEFT_CUDA_LIBS to its folder",
               what, name, tried);
  return nullptr;
}

void* find_function(void* library, const char* library_name, const char* name) {
  void* const symbol = dlsym(library, name);
  check_system(symbol != nullptr, "cuda: {} has no {}; it is of another version", library_name,
               name);
  return symbol;
}

}  // namespace weft::cuda
