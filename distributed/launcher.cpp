#include "weft/distributed/launcher.h"

#include <cstdlib>
#include <initializer_list>

namespace weft::distributed {
namespace {

// The first of these variables that is set, or `without`.
int number_in(std::initializer_list<const char*> names, int without) {
  for (const char* name : names)
    if (const char* text = std::getenv(name)) return std::atoi(text);
  return without;
}

// Open MPI, MPICH and Intel MPI, and srun with either of its two MPI plugins.
int mpi_rank() { return number_in({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}, -1); }

bool names_several() { return mpi_rank() < 0 && number_in({"WORLD_SIZE"}, 1) > 1; }

}  // namespace

bool under_mpi() { return mpi_rank() >= 0; }

bool under_tcp() { return names_several() && std::getenv("RANK"); }

bool lacks_rank() { return names_several() && !std::getenv("RANK"); }

int launched_rank() { return under_tcp() ? number_in({"RANK"}, -1) : mpi_rank(); }

int launched_ranks() {
  if (under_tcp()) return number_in({"WORLD_SIZE"}, 1);
  return number_in({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}, 1);
}

bool prints_for_all() {
  if (is_launched()) return launched_rank() == 0;
  return launched_ranks() <= 1 || number_in({"SLURM_PROCID"}, 0) == 0;
}

}  // namespace weft::distributed
