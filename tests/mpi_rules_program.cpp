// Runs collectives under mpirun and checks MPI's rules for buffers, which a fast transport does not
// need and another one may: no receive is posted over a message that is still being sent. Sends are
// made synchronous, so that none ends before its receive is posted.
#include <mpi.h>

#include <cstdio>
#include <map>
#include <vector>

#include "weft/distributed/mpi_messages.h"
#include "weft/distributed/mpi_world.h"

namespace {

using namespace weft;
using namespace weft::distributed;

struct Range {
  const char *begin, *end;
};
std::map<MPI_Request, Range> sends;  // in progress, as far as the caller can know
int broken = 0;

void ended(MPI_Request request) { sends.erase(request); }

}  // namespace

// The linker takes these in place of the library's own.
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag,
                         MPI_Comm comm, MPI_Request* request) {
  if (count == static_cast<int>(sizeof(Note)))  // may be for a rank that has ended
    return PMPI_Isend(data, count, type, to, tag, comm, request);
  const int code = PMPI_Issend(data, count, type, to, tag, comm, request);
  const char* const begin = static_cast<const char*>(data);
  sends[*request] = {begin, begin + count};
  return code;
}

extern "C" int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
                         MPI_Request* request) {
  const char *const begin = static_cast<const char*>(data), *const end = begin + count;
  for (const auto& [other, range] : sends)
    if (begin < range.end && range.begin < end) ++broken;
  return PMPI_Irecv(data, count, type, from, tag, comm, request);
}

extern "C" int MPI_Testsome(int count, MPI_Request* requests, int* done, int* which,
                            MPI_Status* statuses) {
  const std::vector<MPI_Request> before(requests, requests + count);
  const int code = PMPI_Testsome(count, requests, done, which, statuses);
  for (int i = 0; *done != MPI_UNDEFINED && i < *done; ++i)
    ended(before[static_cast<std::size_t>(which[i])]);
  return code;
}

int main() {
  const auto world = mpi_world();
  ProcessGroup& all = world->all();
  const int n = world->size(), me = world->rank();
  // Empty, less than a rank each, one piece, several pieces.
  for (const std::int64_t rows : {0, 1, 100, 300000}) {
    const Tensor x = Tensor::ones({rows * n, 3});
    const Tensor own = x.narrow(0, me * rows, rows);
    all.all_reduce(x).wait();
    all.reduce_scatter(own, x).wait();
    all.all_gather(x, own).wait();
    all.broadcast(x, n - 1).wait();
    all.all_to_all(Tensor::empty({rows * n, 3}), x).wait();
    all.exchange(Tensor::empty({rows, 3}), (me + n - 1) % n, own, (me + 1) % n).wait();
    if (rows > 0 && x.select(0, 0).select(0, 0).item() != n * n) return 4;
  }
  if (broken > 0) std::fprintf(stderr, "%d receives were posted over a pending send\n", broken);
  return broken > 0 ? 3 : 0;
}
