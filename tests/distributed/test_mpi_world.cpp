// A job of one process. tests/cli/test_mpi.py and the tests started by mpirun cover several.
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "weft/distributed/launcher.h"
#include "weft/distributed/message_world.h"
#include "weft/distributed/mpi_world.h"
#include "weft/distributed/processor_share.h"
#include "weft/tests/group_conformance.h"
#include "weft/tests/support.h"

namespace weft::distributed::mpi_world_test {

TEST_CASE("mpi_world: under_mpi looks for a launcher's variables") {
  const char* const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};
  for (const char* name : names) unsetenv(name);
  CHECK(!under_mpi());
  for (const char* name : names) {
    setenv(name, "0", 1);
    CHECK(under_mpi());
    unsetenv(name);
  }
}

TEST_CASE("mpi_world: the launcher's number of processes is read") {
  const char* const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
  for (const char* name : names) unsetenv(name);
  CHECK(launched_ranks() == 1);
  for (const char* name : names) {
    setenv(name, "3", 1);
    CHECK(launched_ranks() == 3);
    unsetenv(name);
  }
}

TEST_CASE("mpi_world: processes on the same processors share them") {
  const auto range = [](std::size_t first, std::size_t last) {
    Processors set;
    for (std::size_t p = first; p < last; ++p) set[p] = true;
    return set;
  };
  const auto shares = [](const std::vector<Processors>& allowed) {
    std::vector<int> all;
    for (std::size_t i = 0; i < allowed.size(); ++i) all.push_back(processor_share(allowed, i));
    return all;
  };
  // Independent of the machine: a job with some of its processors, one processor each, some and all
  // of 8, and more processes than processors.
  CHECK(shares(std::vector(4, range(16, 24))) == std::vector{2, 2, 2, 2});
  CHECK(shares(std::vector(3, range(0, 6))) == std::vector{2, 2, 2});
  CHECK(shares({range(0, 1), range(1, 2)}) == std::vector{1, 1});
  CHECK(shares({range(0, 8), range(0, 4)}) == std::vector{6, 2});
  CHECK(shares(std::vector(3, range(0, 2))) == std::vector{1, 1, 1});
  CHECK(shares({range(0, 0)}) == std::vector{1});
}

TEST_CASE("mpi_world: data of another world is refused") {
  run_ranks(1, [](World& w) {
    CHECK(test::error_of([&] { bytes_moved(w); }) ==
          "bytes_moved: the ranks of the world must be processes, got backend thread");
  });
}

TEST_CASE("mpi_world: without a launcher the world has one rank") {
#if WEFT_WITH_MPI
  {
    const auto world = mpi_world();
    CHECK(world->rank() == 0);
    CHECK(world->size() == 1);
    CHECK(std::string(world->backend()) == "mpi");
    test::check_groups(*world);
    CHECK(bytes_moved(*world) == 0);
  }
  CHECK(test::error_of([] { mpi_world(); }) ==
        "mpi_world: MPI has ended; make one world for the life of the program");
#else
  CHECK(test::error_of([] { mpi_world(); }) ==
        "mpi_world: this library was built without MPI; configure it with -DWEFT_MPI=ON");
#endif
}

}  // namespace weft::distributed::mpi_world_test
