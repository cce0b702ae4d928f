// One rank, which is all of NCCL that one GPU can test. Several emulated ranks:
// tests/cuda/emu/test_nccl.cpp.
#include <doctest/doctest.h>

#include "weft/distributed/nccl_world.h"
#include "weft/tests/cuda/gpu.h"
#include "weft/tests/group_conformance.h"

namespace weft::distributed::nccl_test {

TEST_CASE("nccl: one rank") {
  if (const std::string why = test::error_of([] { nccl_version(); }); why != "no error") {
    MESSAGE("skipped: nccl: one rank: ", why);  // scripts/gpu_check.sh reports it
    return;
  }
  run_ranks(1, [](World& bootstrap) {
    const auto world = nccl_world(bootstrap, test::kGpu);
    CHECK(world->size() == 1);
    test::check_groups(*world, test::kGpu);
  });
}

}  // namespace weft::distributed::nccl_test
