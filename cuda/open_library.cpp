#include "weft/cuda/open_library.h"

#include <dlfcn.h>
#include <glob.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>
#include <vector>

#include "weft/core/error.h"

namespace weft::cuda {
namespace {

std::string own_folder() {
  Dl_info info;
  if (!dladdr(reinterpret_cast<const void*>(&own_folder), &info) || !info.dli_fname) return "";
  const std::string file = info.dli_fname;
  const std::size_t slash = file.rfind('/');
  return slash == std::string::npos ? "" : file.substr(0, slash);
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

std::vector<std::string> files_matching(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> files;
  if (glob(pattern.c_str(), GLOB_BRACE, nullptr, &found) == 0)
    files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  return files;
}

// The folder above the one of the first python3 on the PATH, as it is named there: in a virtual
// environment that is a link to another Python. Scripts that only choose one have no modules beside
// them.
std::string prefix_of_python() {
  const std::string path = variable("PATH");
  for (std::string_view rest = path; !rest.empty();) {
    const std::size_t end = rest.find(':');
    const std::string folder(rest.substr(0, end));
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (folder.empty() || access((folder + "/python3").c_str(), X_OK) != 0) continue;
    const std::string prefix = folder.substr(0, folder.rfind('/'));
    if (!files_matching(prefix + "/{lib,local/lib}/python3*").empty()) return prefix;
  }
  return "";
}

// Patterns of the folders where pip puts NVIDIA's libraries: nvidia/cu13/lib, nvidia/cublas/lib,
// nvidia/nccl/lib.
std::vector<std::string> python_folders() {
  std::string user = variable("PYTHONUSERBASE");
  if (user.empty() && !variable("HOME").empty()) user = variable("HOME") + "/.local";
  std::vector<std::string> folders;
  for (const std::string& prefix :
       {variable("VIRTUAL_ENV"), variable("CONDA_PREFIX"), prefix_of_python(), user})
    if (!prefix.empty())
      folders.push_back(prefix +
                        "/{lib,lib64,local/lib}/python3*/{site,dist}-packages/nvidia/*/lib");
  return folders;
}

std::vector<std::string> toolkit_folders() {
  std::vector<std::string> folders;
  if (const std::string conda = variable("CONDA_PREFIX"); !conda.empty())
    folders.push_back(conda + "/lib");
  for (const std::string& home :
       {variable("CUDA_HOME"), variable("CUDA_PATH"), std::string("/usr/local/cuda")})
    if (!home.empty())
      for (const char* const folder : {"/lib64", "/lib"}) folders.push_back(home + folder);
  return folders;
}

}  // namespace

void* open_library(const std::string& name, const char* what) {
  if (void* loaded = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD)) return loaded;
  std::string tried;
  const auto attempt = [&](const std::string& file) -> void* {
    if (void* p = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return p;
    const char* const why = dlerror();
    tried += (tried.empty() ? "" : ", ") + file;
    if (access(file.c_str(), F_OK) == 0 && why) tried += message(" ({})", why);
    return nullptr;
  };
  for (const std::string& folder : {own_folder(), variable("WEFT_CUDA_LIBS")})
    if (!folder.empty())
      if (void* p = attempt(folder + "/" + name)) return p;
  if (void* p = attempt(name)) return p;
  for (const std::string& folder : python_folders()) {
    const std::vector<std::string> files = files_matching(folder + "/" + name);
    for (const std::string& file : files)
      if (void* p = attempt(file)) return p;
    if (files.empty()) tried += ", " + folder;
  }
  for (const std::string& folder : toolkit_folders())
    if (void* p = attempt(folder + "/" + name)) return p;
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
