// A job of one process; several: tests/cli/test_mpi.py and the tests that mpirun starts.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "weft/distributed/mpi_world.h"
#include "weft/tests/group_conformance.h"
#include "weft/tests/support.h"

namespace weft::distributed {

TEST_CASE("under_mpi looks for a launcher's variables") {
  const char* const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};
  for (const char* name : names) unsetenv(name);
  CHECK(!under_mpi());
  for (const char* name : names) {
    setenv(name, "0", 1);
    CHECK(under_mpi());
    unsetenv(name);
  }
}

TEST_CASE("bytes of another world") {
  run_ranks(1, [](World& w) {
    CHECK(test::error_of([&] { mpi_bytes_moved(w); }) ==
          "mpi_bytes_moved: the world must be mpi_world()'s, got backend thread");
  });
}

TEST_CASE("without a launcher: the only rank of a job of one") {
#if WEFT_WITH_MPI
  {
    const auto world = mpi_world();
    CHECK(world->rank() == 0);
    CHECK(world->size() == 1);
    CHECK(std::string(world->backend()) == "mpi");
    test::check_groups(*world);
    CHECK(mpi_bytes_moved(*world) == 0);
  }
  CHECK(test::error_of([] { mpi_world(); }) ==
        "mpi_world: MPI has ended; make one world for the life of the program");
#else
  CHECK(test::error_of([] { mpi_world(); }) ==
        "mpi_world: this library was built without MPI; configure it with -DWEFT_MPI=ON");
#endif
}

}  // namespace weft::distributed
