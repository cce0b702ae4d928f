#include "weft/distributed/mpi_messages.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/core/cgroup.h"
#include "weft/core/error.h"
#include "weft/distributed/deadline.h"
#include "weft/distributed/process_watch.h"
#include "weft/distributed/processor_share.h"

namespace weft::distributed {
namespace {

// MPI counts are int; send a large tensor in pieces.
constexpr std::int64_t kLongest = std::int64_t{1} << 30;
constexpr int kNoteTag = 1;
// Minimum timeout in seconds for MPI_Init, for busy machines.
constexpr double kStart = 30;

std::atomic<bool> doomed{false};
std::atomic<bool> process_lost{false};

[[noreturn]] void end_all(int status) {
  int finalised = 0;
  MPI_Finalized(&finalised);
  if (!finalised) MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

// Runs after main() has returned or exit() was called: messages are out, and the exit status of a
// failed job must not be 0.
void at_exit(int status, void*) {
  if (!doomed) return;
  // mpirun ends a job that has lost a process, within two seconds; other launchers may not.
  if (process_lost) std::this_thread::sleep_for(std::chrono::seconds(3));
  // The other ranks learned of the failure at the same time and may still print a line. They take
  // turns to abort, since one is enough: Open MPI's mpirun may hang when several do at once.
  int rank = 0, finalised = 0;
  MPI_Finalized(&finalised);
  if (!finalised) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::this_thread::sleep_for(std::chrono::milliseconds(500 + 200 * std::min(rank, 10)));
  end_all(status ? status : 1);
}

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return text;
}

void ok(int code, const char* what) {
  check_system(code == MPI_SUCCESS, "mpi: {} failed: {}", what, error_text(code));
}

}  // namespace

struct MpiMessages::State {
  bool started_here = false;
  MPI_Comm data = MPI_COMM_NULL, notes = MPI_COMM_NULL;
  int rank = 0, size = 1, processors = 1, largest_tag = 32767;

  struct About {
    int batch, peer;
    int queue() const { return batch / kBatches; }
    std::int64_t bytes;  // expected size; -1: a send
  };
  std::vector<MPI_Request> requests;
  std::vector<About> about;  // by request
  std::vector<int> through;
  std::vector<MPI_Status> statuses;
  std::array<int, kBatches * kQueues> under_way{};
  std::array<std::string, kQueues> trouble;
  std::array<bool, kQueues> moved{};

  void forget_null() {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < requests.size(); ++i)
      if (requests[i] != MPI_REQUEST_NULL) {
        requests[kept] = requests[i];
        about[kept++] = about[i];
      }
    requests.resize(kept);
    about.resize(kept);
  }

  Note incoming;
  MPI_Request listening = MPI_REQUEST_NULL;
  struct Telling {
    Note note;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  std::list<Telling> telling;
  ProcessWatch neighbours;  // the other ranks of this machine

  void listen() {
    ok(MPI_Irecv(&incoming, sizeof incoming, MPI_BYTE, MPI_ANY_SOURCE, kNoteTag, notes, &listening),
       "MPI_Irecv");
  }
};

MpiMessages::MpiMessages(double timeout_s, std::function<void()> too_late)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  // MPI_Init waits for every rank and cannot be cancelled: if a rank ended before calling it, the
  // others would wait forever.
  const double limit = std::max(timeout_s, kStart);
  const Deadline deadline(
      limit, too_late ? std::move(too_late) : [limit] {
        std::fprintf(stderr, "error: mpi_world: not every rank came within %g s\n", limit);
      });
  int initialised = 0, finalised = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  check(!finalised, "mpi_world: MPI has ended; make one world for the life of the program");
  if (initialised) {
    ok(MPI_Query_thread(&level), "MPI_Query_thread");
  } else {
    ok(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread");
    s.started_here = true;
  }
  on_exit(at_exit, nullptr);
  check_system(level >= MPI_THREAD_SERIALIZED,
               "mpi_world: MPI must allow calls from more than one thread (MPI_THREAD_SERIALIZED, "
               "{}), got level {}; call MPI_Init_thread with it, or use an MPI built with threads",
               MPI_THREAD_SERIALIZED, level);
  ok(MPI_Comm_dup(MPI_COMM_WORLD, &s.data), "MPI_Comm_dup");
  ok(MPI_Comm_dup(MPI_COMM_WORLD, &s.notes), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(s.data, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(s.notes, MPI_ERRORS_RETURN);
  MPI_Comm_rank(s.data, &s.rank);
  MPI_Comm_size(s.data, &s.size);
  int* largest = nullptr;
  int known = 0;
  MPI_Comm_get_attr(s.data, MPI_TAG_UB, &largest, &known);
  if (known) s.largest_tag = *largest;
  MPI_Comm machine = MPI_COMM_NULL;
  ok(MPI_Comm_split_type(s.data, MPI_COMM_TYPE_SHARED, s.rank, MPI_INFO_NULL, &machine),
     "MPI_Comm_split_type");
  int neighbours = 1, own = 0;
  MPI_Comm_size(machine, &neighbours);
  MPI_Comm_rank(machine, &own);
  struct Neighbour {
    Processors allowed;
    int rank = 0;
    ProcessWatch::Process process;
  };
  static_assert(std::is_trivially_copyable_v<Neighbour>);
  std::vector<Neighbour> all(static_cast<std::size_t>(neighbours));
  const Neighbour mine{own_processors(), s.rank, ProcessWatch::Process::own()};
  ok(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, machine),
     "MPI_Allgather");
  std::vector<Processors> allowed;
  for (const Neighbour& n : all) {
    allowed.push_back(n.allowed);
    if (n.rank != s.rank) s.neighbours.add(n.rank, n.process);
  }
  s.processors = processor_share(allowed, static_cast<std::size_t>(own));
  // A quota applies to all ranks together: a job on one machine is started in one cgroup.
  if (const auto quota = weft::detail::cgroup_limits().processors)
    s.processors = std::min(s.processors, std::max(1, static_cast<int>(*quota / neighbours)));
  MPI_Comm_free(&machine);
  s.listen();
}

MpiMessages::~MpiMessages() {
  if (doomed) state_.release();  // MPI still reads the last notes from it
}

int MpiMessages::rank() const { return state_->rank; }
int MpiMessages::size() const { return state_->size; }
int MpiMessages::processors() const { return state_->processors; }

int MpiMessages::largest_tag() const { return state_->largest_tag; }

void MpiMessages::send(int to, int tag, const void* data, std::int64_t bytes, int batch) {
  State& s = *state_;
  for (std::int64_t begin = 0; begin < bytes; begin += kLongest) {
    const std::int64_t n = std::min(kLongest, bytes - begin);
    MPI_Request request = MPI_REQUEST_NULL;
    ok(MPI_Isend(static_cast<const char*>(data) + begin, static_cast<int>(n), MPI_BYTE, to, tag,
                 s.data, &request),
       "MPI_Isend");
    s.requests.push_back(request);
    s.about.push_back({batch, to, -1});
    ++s.under_way[static_cast<std::size_t>(batch)];
  }
}

void MpiMessages::receive(int from, int tag, void* data, std::int64_t bytes, int batch) {
  State& s = *state_;
  for (std::int64_t begin = 0; begin < bytes; begin += kLongest) {
    const std::int64_t n = std::min(kLongest, bytes - begin);
    MPI_Request request = MPI_REQUEST_NULL;
    ok(MPI_Irecv(static_cast<char*>(data) + begin, static_cast<int>(n), MPI_BYTE, from, tag, s.data,
                 &request),
       "MPI_Irecv");
    s.requests.push_back(request);
    s.about.push_back({batch, from, n});
    ++s.under_way[static_cast<std::size_t>(batch)];
  }
}

void MpiMessages::progress() {
  State& s = *state_;
  if (s.requests.empty()) return;
  const std::size_t n = s.requests.size();
  s.through.resize(n);
  s.statuses.resize(n);
  int done = 0;
  const int code = MPI_Testsome(static_cast<int>(n), s.requests.data(), &done, s.through.data(),
                                s.statuses.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) ok(code, "MPI_Testsome");
  if (done == MPI_UNDEFINED || done == 0) return;
  for (int i = 0; i < done; ++i) {
    const auto index = static_cast<std::size_t>(s.through[static_cast<std::size_t>(i)]);
    const MPI_Status& status = s.statuses[static_cast<std::size_t>(i)];
    const State::About& about = s.about[index];
    --s.under_way[static_cast<std::size_t>(about.batch)];
    s.moved[static_cast<std::size_t>(about.queue())] = true;
    std::string& trouble = s.trouble[static_cast<std::size_t>(about.queue())];
    int came = 0;
    if (code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS) {
      trouble = message("a message of rank {}: {}", about.peer, error_text(status.MPI_ERROR));
    } else if (about.bytes >= 0) {
      MPI_Get_count(&status, MPI_BYTE, &came);
      if (came != about.bytes)
        trouble = message("a message of rank {} had {} bytes instead of {}", about.peer, came,
                          about.bytes);
    }
  }
  s.forget_null();
}

bool MpiMessages::has_moved(int queue) {
  return std::exchange(state_->moved[static_cast<std::size_t>(queue)], false);
}

int MpiMessages::under_way(int batch) const {
  return state_->under_way[static_cast<std::size_t>(batch)];
}

bool MpiMessages::waits_for(int queue, int rank) const {
  return std::any_of(state_->about.begin(), state_->about.end(),
                     [&](const State::About& a) { return a.queue() == queue && a.peer == rank; });
}

const std::string& MpiMessages::trouble(int queue) const {
  return state_->trouble[static_cast<std::size_t>(queue)];
}

void MpiMessages::abandon(int queue) {
  State& s = *state_;
  for (std::size_t i = 0; i < s.requests.size(); ++i) {
    if (s.about[i].queue() != queue) continue;
    if (s.about[i].bytes >= 0) MPI_Cancel(&s.requests[i]);
    MPI_Request_free(&s.requests[i]);  // null from now on
    --s.under_way[static_cast<std::size_t>(s.about[i].batch)];
  }
  s.forget_null();
  s.trouble[static_cast<std::size_t>(queue)].clear();
}

void MpiMessages::tell(int to, const Note& note) {
  State& s = *state_;
  State::Telling& t = s.telling.emplace_back();
  t.note = note;
  t.note.from = s.rank;
  ok(MPI_Isend(&t.note, sizeof t.note, MPI_BYTE, to, kNoteTag, s.notes, &t.request), "MPI_Isend");
}

bool MpiMessages::hear(Note& note) {
  State& s = *state_;
  for (auto t = s.telling.begin(); t != s.telling.end();) {
    int sent = 0;
    MPI_Test(&t->request, &sent, MPI_STATUS_IGNORE);
    t = sent ? s.telling.erase(t) : std::next(t);
  }
  int came = 0;
  ok(MPI_Test(&s.listening, &came, MPI_STATUS_IGNORE), "MPI_Test");
  if (came) {
    note = s.incoming;
    s.listen();
    return true;
  }
  const int rank = s.neighbours.ended();
  if (rank < 0) return false;
  process_lost = true;
  note = {.kind = Note::Kind::lost, .from = rank};
  note.set_text("its process has ended");
  return true;
}

void MpiMessages::finish() {
  State& s = *state_;
  for (State::Telling& t : s.telling) MPI_Wait(&t.request, MPI_STATUS_IGNORE);
  s.telling.clear();
  MPI_Cancel(&s.listening);
  MPI_Wait(&s.listening, MPI_STATUS_IGNORE);
  MPI_Comm_free(&s.data);
  MPI_Comm_free(&s.notes);
  if (s.started_here) MPI_Finalize();
}

void MpiMessages::doom() { doomed = true; }

void MpiMessages::abort(int status) { end_all(status); }

}  // namespace weft::distributed
