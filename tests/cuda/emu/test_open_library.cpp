// Where NVIDIA's libraries are searched: copies of a small library in a folder tree like pip's.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "weft/cuda/open_library.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::open_library_test {
namespace {

namespace fs = std::filesystem;
using cuda::open_library;

// The variables that the search reads, all empty; restored at the end.
class Variables {
 public:
  Variables() {
    for (const char* name : kNames) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      unsetenv(name);
    }
  }
  ~Variables() {
    for (const char* name : kNames) unsetenv(name);
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }
  static void set(const char* name, const fs::path& value) { setenv(name, value.c_str(), 1); }

 private:
  static constexpr const char* kNames[] = {"WEFT_CUDA_LIBS", "VIRTUAL_ENV", "CONDA_PREFIX",
                                           "PATH",           "HOME",        "PYTHONUSERBASE",
                                           "CUDA_HOME",      "CUDA_PATH"};
  std::map<std::string, std::string> before_;
};

struct Tree {
  test::TempFolder folder;
  fs::path root = folder.path();
  // A library under this name in the folder.
  void add(const std::string& folder, const std::string& name) const {
    fs::create_directories(root / folder);
    fs::copy_file(fs::path(WEFT_FAKE_NVML) / "libnvidia-ml.so.1", root / folder / name);
  }
};

// The file that has been opened, below the root of the tree.
std::string found(const Tree& tree, const std::string& name) {
  void* const library = open_library(name, "tests");
  Dl_info info;
  if (!dladdr(dlsym(library, "nvmlInit_v2"), &info)) return "unknown";
  return fs::relative(info.dli_fname, tree.root).string();
}

}  // namespace

TEST_CASE("open_library: pip's folders and the toolkit's") {
  Variables v;
  const Tree tree;
  const auto finds = [&](const char* variable, const std::string& prefix, const std::string& folder,
                         const std::string& name) {
    tree.add(folder, name);
    Variables::set(variable, tree.root / prefix);
    CHECK(found(tree, name) == folder + "/" + name);
    unsetenv(variable);
  };
  finds("VIRTUAL_ENV", "venv", "venv/lib/python3.11/site-packages/nvidia/cu13/lib", "libwa.so.1");
  finds("CONDA_PREFIX", "conda", "conda/lib/python3.12/site-packages/nvidia/cublas/lib",
        "libwb.so.1");
  finds("PYTHONUSERBASE", "user", "user/lib/python3.9/site-packages/nvidia/nccl/lib", "libwc.so.1");
  finds("HOME", "home", "home/.local/lib/python3.9/site-packages/nvidia/nccl/lib", "libwd.so.1");
  finds("CUDA_HOME", "cuda-13", "cuda-13/lib64", "libwe.so.1");
  finds("CUDA_PATH", "cuda-14", "cuda-14/lib", "libwf.so.1");
  finds("CONDA_PREFIX", "conda", "conda/lib", "libwk.so.1");
  // The first python3 on the PATH that has modules, which is not run, and Debian's folder for pip.
  for (const char* const folder : {"shims", "usr/bin"}) {
    fs::create_directories(tree.root / folder);
    std::ofstream(tree.root / folder / "python3") << "not a program";
    fs::permissions(tree.root / folder / "python3", fs::perms::owner_all);
  }
  tree.add("usr/local/lib/python3.11/dist-packages/nvidia/cu13/lib", "libwg.so.1");
  const std::string root = tree.root.string();
  Variables::set("PATH", "/nowhere:" + root + "/shims:" + root + "/usr/bin:/bin");
  CHECK(found(tree, "libwg.so.1") ==
        "usr/local/lib/python3.11/dist-packages/nvidia/cu13/lib/libwg.so.1");
}

TEST_CASE("open_library: the user's folder comes first, and an open library before all") {
  Variables v;
  const Tree tree;
  const std::string venv = "venv/lib/python3.11/site-packages/nvidia/cu13/lib";
  for (const char* const name : {"libwh.so.1", "libwi.so.1"}) tree.add(venv, name);
  tree.add("own", "libwh.so.1");
  Variables::set("VIRTUAL_ENV", tree.root / "venv");
  Variables::set("WEFT_CUDA_LIBS", tree.root / "own");
  CHECK(found(tree, "libwh.so.1") == "own/libwh.so.1");
  CHECK(found(tree, "libwi.so.1") == venv + "/libwi.so.1");
  CHECK(open_library("libm.so.6", "tests") != nullptr);
}

TEST_CASE("open_library: a library that is not found lists where it was searched") {
  Variables v;
  const Tree tree;
  fs::create_directories(tree.root / "cuda/lib64");
  std::ofstream(tree.root / "cuda/lib64/libwj.so.1") << "no library";
  Variables::set("WEFT_CUDA_LIBS", "/own");
  Variables::set("VIRTUAL_ENV", "/venv");
  Variables::set("CUDA_HOME", tree.root / "cuda");
  const std::string why = test::error_of([] { open_library("libwj.so.1", "tests"); });
  const std::string broken = (tree.root / "cuda/lib64/libwj.so.1").string();
  CHECK(why.starts_with("cuda: tests need libwj.so.1, and it was not found; tried /"));
  for (const std::string& place :
       {std::string("/libwj.so.1, /own/libwj.so.1, libwj.so.1, "),
        std::string("/venv/{lib,lib64,local/lib}/python3*/{site,dist}-packages/nvidia/*/lib, "),
        broken + " (" + broken + ": ", std::string(", /usr/local/cuda/lib/libwj.so.1; ")})
    CHECK(why.find(place) != std::string::npos);
  CHECK(why.ends_with("; set WEFT_CUDA_LIBS to its folder"));
}

}  // namespace weft::open_library_test
