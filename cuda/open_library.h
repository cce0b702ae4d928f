#pragma once
#include <string>

namespace weft::cuda {

/// Opens an NVIDIA library at first use: one that is already loaded, else from the folder of Weft's
/// own file, from WEFT_CUDA_LIBS, from the loader's search path, from where pip puts it
/// (site-packages/nvidia/*/lib of VIRTUAL_ENV, CONDA_PREFIX, the python3 on the PATH, and the
/// user), or from the toolkit (CONDA_PREFIX, CUDA_HOME, CUDA_PATH, /usr/local/cuda). No Python is
/// run.
/// Throws Error (Fault::system) "cuda: <what> need <name>, and it was not found; tried ...".
void* open_library(const std::string& name, const char* what);

/// A function of the library.
/// Throws Error when the library has no function of that name.
void* find_function(void* library, const char* library_name, const char* name);

template <class Function>
void find_function(void* library, const char* library_name, Function& function, const char* name) {
  function = reinterpret_cast<Function>(find_function(library, library_name, name));
}

}  // namespace weft::cuda
