// One rank of a job in which a fault occurs, for tests/cli/test_mpi_faults.py and test_tcp.py.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/distributed/launcher.h"
#include "weft/distributed/message_world.h"
#include "weft/tests/tell_fault.h"

// From mpi.h, which only the library includes.
extern "C" int MPI_Init_thread(int* argc, char*** argv, int wanted, int* level);

namespace {

using weft::DType;
using weft::Error;
using weft::Tensor;
using weft::distributed::World;

// Rank 1 fails after a few successful collectives. The other ranks do the same in each case.
void go_wrong(World& w, const std::string& fault, const std::string& folder) {
  const bool wrong = w.rank() == 1;
  if (wrong && fault != "none") weft::test::tell_fault(folder);
  const Tensor x = Tensor::full({1000}, 1.0);
  const auto pair = w.group("pair", {0, 1});
  if (fault == "kill" && wrong) raise(SIGKILL);
  if (fault == "stop" && wrong) raise(SIGSTOP);
  if (fault == "exit" && wrong) return;
  if (fault == "exit_now" && wrong) _exit(0);
  if (fault == "throw" && wrong) throw Error("bad luck");
  if (fault == "throw_elsewhere") {
    // The collective between ranks 2 and 3 does not fail together with rank 1.
    const auto rest = w.group("rest", {2, 3});
    if (wrong) throw Error("bad luck");
    std::this_thread::sleep_for(std::chrono::seconds(w.rank() == 0 ? 4 : w.rank() - 2));
    if (rest) rest->all_reduce(x).wait();
    std::fprintf(stderr, "rank %d: this far\n", w.rank());
  }
  if (fault == "compute" && wrong) std::this_thread::sleep_for(std::chrono::seconds(20));
  if (fault == "kind" && wrong) w.all().all_reduce(x, weft::distributed::Reduce::max).wait();
  if (fault == "count" && wrong) w.all().all_reduce(Tensor::full({999}, 1.0)).wait();
  if (fault == "dtype" && wrong) w.all().all_reduce(Tensor::full({1000}, 1.0, DType::i32)).wait();
  if (fault == "dropped") {
    const auto nobody_waits = w.all().all_reduce(wrong ? Tensor::full({999}, 1.0) : x);
    return;
  }
  if (fault == "group") w.group(wrong ? "this" : "that", {0, 1})->barrier().wait();
  if (fault == "skip" && wrong) {
    pair->barrier().wait();
    return;
  }
  if (fault == "far") {
    // Rank 0 waits for rank 1, which waits for rank 3.
    const auto far = w.group("far", {1, 3});
    if (w.rank() == 3) raise(SIGSTOP);
    if (far) {
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
      far->barrier().wait();
    }
    if (pair) pair->all_reduce(x).wait();
    std::this_thread::sleep_for(std::chrono::seconds(20));
  }
  if (fault.starts_with("lane")) {
    // Rank 1 comes to the collectives of one lane and not to those of another.
    const auto data = w.group("data", w.all().ranks(), weft::distributed::Lane::data);
    const bool stops = fault == "lane_stop";
    weft::distributed::Work waits;
    if (!wrong && !stops) waits = data->all_reduce(x);
    const Tensor y = Tensor::full({300000}, 1.0);
    for (int i = 0; i < 5; ++i) w.all().all_reduce(y, weft::distributed::Reduce::max).wait();
    if (wrong && stops) raise(SIGSTOP);
    if (wrong) std::this_thread::sleep_for(std::chrono::seconds(20));
    // Here the timeout begins when rank 1 stops, however slow the machine is.
    if (stops) waits = data->all_reduce(x);
    waits.wait();
  }
  if (fault == "rows") {
    // Rank 0 sends three rows to rank 1, which expects two.
    const int n = w.size();
    weft::distributed::Rows out(static_cast<std::size_t>(n), 1), in = out;
    if (w.rank() == 0) in[1] = 3;
    if (w.rank() == 1) out[0] = 2;
    std::int64_t sent = 0, came = 0;
    for (const auto r : in) sent += r;
    for (const auto r : out) came += r;
    w.all().all_to_all(Tensor::empty({came, 4}), Tensor::full({sent, 4}, 1.0), out, in).wait();
  }
  for (int i = 0; i < 20; ++i) w.all().all_reduce(x).wait();
  if (fault == "late" && wrong) {  // the other ranks have finished
    weft::test::tell_fault(folder);
    raise(SIGSTOP);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string fault = argc > 1 ? argv[1] : "";
  weft::distributed::WorldOptions options;
  options.timeout_s = argc > 2 ? std::atof(argv[2]) : 2;
  if (argc > 3) options.dump_folder = argv[3];
  int rank = -1;
  int level = 0;
  // It exits before the others start: mpirun does not treat that as an error.
  if (fault == "absent") {
    if (weft::distributed::launched_rank() == 1) {
      weft::test::tell_fault(options.dump_folder);
      return 0;
    }
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
  if (fault == "begins late" && weft::distributed::launched_rank() == 1)
    std::this_thread::sleep_for(std::chrono::seconds(3));
  if (fault == "three threads") weft::set_num_threads(3);
  if (fault == "single") MPI_Init_thread(nullptr, nullptr, level, &level);
  try {
    const auto world = weft::distributed::world_of_launch(options);
    rank = world->rank();
    if (fault.ends_with("threads"))
      std::fprintf(stderr, "rank %d: %d threads\n", rank, weft::num_threads());
    for (int i = 0; i < 3; ++i) world->all().barrier().wait();
    go_wrong(*world, fault, options.dump_folder);
  } catch (const Error& e) {
    std::fprintf(stderr, "rank %d: error: %s\n", rank, e.what());
    return static_cast<int>(e.fault());
  }
  std::fprintf(stderr, "rank %d: well\n", rank);
  return 0;
}
