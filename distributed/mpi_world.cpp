#include "weft/distributed/mpi_world.h"

#include <utility>

#include "weft/core/error.h"
#include "weft/distributed/launcher.h"
#include "weft/distributed/message_world.h"

#if WEFT_WITH_MPI
#include "weft/distributed/mpi_messages.h"
#endif

namespace weft::distributed {

#if WEFT_WITH_MPI

bool has_mpi() { return true; }

std::unique_ptr<Messages> mpi_messages(double timeout_s, std::function<void()> too_late) {
  return std::make_unique<MpiMessages>(timeout_s, std::move(too_late));
}

#else

bool has_mpi() { return false; }

std::unique_ptr<Messages> mpi_messages(double, std::function<void()>) {
  throw Error("mpi_world: this library was built without MPI; configure it with -DWEFT_MPI=ON");
}

#endif

std::unique_ptr<World> mpi_world(const WorldOptions& options) {
  auto messages = mpi_messages(options.timeout_s);
  // Each process would be rank 0 of a job of its own. More than the launcher says is harmless: a
  // launch in several parts knows its own part only.
  const int size = messages->size();
  check(size >= launched_ranks(),
        "mpi_world: the launcher started {} processes, and MPI connects {} of them; use the mpirun "
        "of the MPI library that the program is linked with, or srun with its plugin, such as "
        "--mpi=pmix",
        launched_ranks(), size);
  return message_world("mpi", std::move(messages), options);
}

}  // namespace weft::distributed
