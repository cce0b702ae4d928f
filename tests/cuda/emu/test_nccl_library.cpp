// The real NCCL library, where it is installed: it opens without a GPU. When Weft is compiled,
// every declaration is compared with NCCL's header: cuda/nccl_library.cpp.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <string>

#include "weft/cuda/nccl_library.h"
#include "weft/tests/support.h"

namespace weft::nccl_library_test {

namespace nccl = cuda::nccl;

TEST_CASE("nccl library: the installed one has every function, and the version of its header") {
  if (const std::string why = test::error_of([] { nccl::library(); }); why != "no error") {
    MESSAGE("skipped: nccl library: ", why);
    return;
  }
  const nccl::Library& l = nccl::library();
  int version = 0;
  REQUIRE(l.version(&version) == nccl::kOk);
  Dl_info file;
  REQUIRE(dladdr(reinterpret_cast<const void*>(l.version), &file) != 0);
  const std::string path = file.dli_fname;
  CAPTURE(path);
  CAPTURE(version);
  // library() has found all others; 2.28.3 has no revoke yet, 2.28.9 has.
  CHECK((l.revoke != nullptr || version < 22809));
  CHECK((l.revoke == nullptr || version > 22803));
  CHECK(l.text(nccl::kOk) == std::string("no error"));
  CHECK(l.last_error(nullptr) != nullptr);
  if (nccl::header_version() == 0) {
    MESSAGE("skipped: nccl library: there was no nccl.h to compare with");
    return;
  }
  // Another package may have brought another version of the library.
  if (path.find("/cuda") != std::string::npos) CHECK(version == nccl::header_version());
  CHECK(version / 10000 == nccl::header_version() / 10000);
}

}  // namespace weft::nccl_library_test
