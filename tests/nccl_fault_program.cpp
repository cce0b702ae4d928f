// One rank of a job over an emulated NCCL, found over MPI or TCP, in which a fault occurs: for
// tests/cli/test_nccl_faults.py.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <thread>

#include "weft/core/error.h"
#include "weft/cuda/emu/control.h"
#include "weft/distributed/launcher.h"
#include "weft/distributed/message_world.h"
#include "weft/distributed/nccl_world.h"
#include "weft/tests/tell_fault.h"

namespace {

using weft::Device;
using weft::DType;
using weft::Error;
using weft::Tensor;
using weft::distributed::World;
using weft::emu::NcclCall;
using weft::emu::NcclFault;

// The fault of the emulated NCCL at a call of rank 1: its second collective, or when it connects.
// A kernel that no abort ends hangs on every rank, else the other would end the job.
NcclFault fault = NcclFault::none;
std::int64_t fault_number = 1;

void plan(const std::string& name) {
  if (name == "error" || name == "drop") fault = NcclFault::error;
  if (name == "stuck") fault = NcclFault::stuck;
  if (name == "connect") fault = NcclFault::hang;
  if (name == "connect") fault_number = -1;
  weft::emu::nccl_fault = [](const NcclCall& c) {
    const bool here = c.rank == 1 || fault == NcclFault::stuck;
    return here && c.number == fault_number ? fault : NcclFault::none;
  };
}

// Rank 1 fails after a successful collective; the other ranks wait for it on their GPUs.
void go_wrong(World& world, Device gpu, const std::string& name, const std::string& folder) {
  const Tensor x = Tensor::ones({1000}, DType::f32, gpu);
  world.all().all_reduce(x).wait();
  x.to(weft::kCpu);
  if (world.rank() == 1) {
    weft::test::tell_fault(folder);
    if (name == "throw") throw Error("bad luck");
    if (name == "stop") raise(SIGSTOP);
    if (name == "compute") std::this_thread::sleep_for(std::chrono::seconds(60));
  }
  weft::distributed::Work work = world.all().all_reduce(x);
  if (name == "drop") return;  // the program ends as if all were well
  work.wait();
  x.to(weft::kCpu);
  world.check_well();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  weft::distributed::WorldOptions options;
  options.timeout_s = argc > 2 ? std::atof(argv[2]) : 2;
  options.last_resort_s = 2;
  weft::distributed::WorldOptions host_options = options;
  if (argc > 3) options.dump_folder = argv[3];
  plan(name);
  std::unique_ptr<World> host;
  // Late for the other ranks, and below again for their GPUs.
  if (name == "begins late" && weft::distributed::launched_rank() == 1)
    std::this_thread::sleep_for(std::chrono::seconds(2));
  try {
    host = weft::distributed::world_of_launch(host_options);
    const Device gpu{Device::Kind::cuda, static_cast<std::int16_t>(host->rank())};
    const bool is_first = host->rank() == 0;
    if (name == "connect" && is_first) weft::test::tell_fault(options.dump_folder);
    if (name == "begins late" && !is_first) std::this_thread::sleep_for(std::chrono::seconds(2));
    const auto world = weft::distributed::nccl_world(*host, gpu, options);
    go_wrong(*world, gpu, name, options.dump_folder);
  } catch (const Error& e) {
    weft::distributed::end_with_error(std::move(host), e.what(), [](const std::string& line) {
      std::fprintf(stderr, "error: %s\n", line.c_str());
    });
    return static_cast<int>(e.fault());
  }
  return 0;
}
