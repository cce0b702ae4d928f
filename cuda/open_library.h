#pragma once
#include <string>

namespace weft::cuda {

/// A library of NVIDIA's that is opened when first needed: one that is loaded already, else beside
/// Weft's own file, in the folder WEFT_CUDA_LIBS, or where the loader looks.
/// Throws Error (Fault::system) "cuda: <what> need <name>, and it was not found; tried ...".
void* open_library(const std::string& name, const char* what);

/// A function of it.
/// Throws Error when there is none of that name.
void* find_function(void* library, const char* library_name, const char* name);

template <class Function>
void find_function(void* library, const char* library_name, Function& function, const char* name) {
  function = reinterpret_cast<Function>(find_function(library, library_name, name));
}

}  // namespace weft::cuda
