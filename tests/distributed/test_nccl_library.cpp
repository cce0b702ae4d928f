// Finding the NCCL library: the part that needs no GPU.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "weft/core/error.h"
#include "weft/distributed/nccl_world.h"
#include "weft/tests/support.h"
#ifdef WEFT_OLD_NCCL  // the library has kernels for a GPU
#include "weft/cuda/open_library.h"
#endif

namespace weft::distributed::nccl_library_test {

TEST_CASE("nccl_library: a build without CUDA reports it") {
#ifndef WEFT_OLD_NCCL
  const std::string why = test::error_of([] { nccl_version(); });
  if (why == "no error") return;  // the GPUs are emulated, and so is NCCL
  CHECK(why == "nccl_world: this library was built without CUDA; configure it with -DWEFT_CUDA=ON");
  run_ranks(1, [&](World& w) {
    CHECK(test::error_of([&] { nccl_world(w, {Device::Kind::cuda, 0}); }) == why);
  });
#endif
}

#ifdef WEFT_OLD_NCCL

using cuda::find_function;
using cuda::open_library;

TEST_CASE("nccl_library: a library that is not found lists the paths tried") {
  setenv("WEFT_CUDA_LIBS", "/nowhere", 1);
  const std::string why = test::error_of([] { open_library("libweft_none.so.3", "tests"); });
  const std::string begin = "cuda: tests need libweft_none.so.3, and it was not found; tried /";
  CHECK(why.starts_with(begin));
  CHECK(why.find("/libweft_none.so.3, /nowhere/libweft_none.so.3, libweft_none.so.3, ") !=
        std::string::npos);
  CHECK(why.ends_with("/usr/local/cuda/lib/libweft_none.so.3; set WEFT_CUDA_LIBS to its folder"));
}

TEST_CASE("nccl_library: a missing function is an error") {
  void* const library = open_library("libm.so.6", "tests");
  CHECK(find_function(library, "libm", "cos") != nullptr);
  CHECK(test::error_of([&] { find_function(library, "libm", "no_such"); }) ==
        "cuda: libm has no no_such; it is of another version");
}

// WEFT_OLD_NCCL has a library of that name that reports version 2.10.3.
TEST_CASE("nccl_library: a version that is too old in the user's folder is refused") {
  setenv("WEFT_CUDA_LIBS", WEFT_OLD_NCCL, 1);
  const std::string why = test::error_of([] { nccl_version(); });
  CHECK(why == "cuda: libnccl must be at least version 21800, got 21003");
  run_ranks(1, [&](World& w) {
    CHECK(test::error_of([&] { nccl_world(w, {Device::Kind::cuda, 0}); }) == why);
  });
}

#endif

}  // namespace weft::distributed::nccl_library_test
