// Groups over NCCL, as far as they can be tested without GPUs: the calls with their counts and
// streams, and what happens if a rank is missing. Ranks are threads, each with an emulated GPU; the
// emulated NCCL adds in rank order.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <latch>
#include <string>
#include <thread>

#include "weft/autograd/elementwise.h"
#include "weft/core/cuda.h"
#include "weft/cuda/emu/control.h"
#include "weft/distributed/device_mesh.h"
#include "weft/distributed/gpu_of_rank.h"
#include "weft/distributed/nccl_world.h"
#include "weft/io/file.h"
#include "weft/tests/group_conformance.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::distributed::nccl_test {
namespace {

using emu::NcclFault;

Device gpu_of(int rank) { return {Device::Kind::cuda, static_cast<std::int16_t>(rank % 2)}; }

// Ranks on one GPU must not wait for each other's kernels.
class OwnStream {
 public:
  explicit OwnStream(Device device) : stream_(cuda::Stream::take(device)), scope_(stream_) {}
  ~OwnStream() { stream_.give_back(); }
  OwnStream(const OwnStream&) = delete;

 private:
  cuda::Stream stream_;
  cuda::StreamScope scope_;
};

// f(world over NCCL, its device) on every rank.
template <class F>
void over_nccl(int ranks, F f, const WorldOptions& options = {}) {
  run_ranks(ranks, [&](World& bootstrap) {
    const Device gpu = gpu_of(bootstrap.rank());
    const OwnStream stream(gpu);
    const auto world = nccl_world(bootstrap, gpu, options);
    f(*world, gpu);
  });
}

}  // namespace

TEST_CASE("conformance") {
  over_nccl(3, [](World& w, Device gpu) { test::check_groups(w, gpu); });
}

TEST_CASE("nccl: a collective runs after earlier work and before work after wait()") {
  for (const int ranks : {1, 2})
    over_nccl(ranks, [&](World& w, Device gpu) {
      CHECK(std::string(w.backend()) == "nccl");
      const Tensor x = Tensor::full({1000}, w.rank() + 1.0, DType::f32, gpu);
      const std::int64_t syncs = cuda::host_syncs();  // of all threads
      const Tensor y = mul(x, 2.0);
      w.all().all_reduce(y).wait();
      const Tensor z = add(y, 1.0);
      if (ranks == 1) CHECK(cuda::host_syncs() == syncs);
      CHECK(test::different_bits(z.to(kCpu), Tensor::full({1000}, ranks == 1 ? 3.0 : 7.0)) == "");
    });
}

TEST_CASE("nccl: more collectives may be in flight than there are events") {
  over_nccl(2, [](World& w, Device gpu) {
    const Tensor x = Tensor::ones({4}, DType::f32, gpu);
    Work first = w.all().all_reduce(x), last;
    for (int i = 0; i < 300; ++i) last = w.all().all_reduce(x, Reduce::max);
    first.wait();
    last.wait();
    CHECK(x.to(kCpu).select(0, 0).item() == 2);
  });
}

TEST_CASE("nccl: tensors must be on the rank's GPU") {
  over_nccl(1, [](World& w, Device) {
    CHECK(test::error_of([&] { w.all().all_reduce(Tensor::ones({4})).wait(); }) ==
          "all_reduce: device must be cuda:0 or meta, got cpu");
  });
}

TEST_CASE("nccl: a missing rank is reported after the timeout") {
  const test::TempFolder folder;
  const std::string why =
      "all_reduce 1 of group world sum f32 [2, 2] did not end within 2 s on rank 0: rank 1 did "
      "not come: it has called nothing since all_reduce 0 of group world sum f32 [2, 2]";
  CHECK(test::error_of([&] {
          run_ranks(2, [&](World& bootstrap) {
            const WorldOptions options{.timeout_s = 2, .dump_folder = folder.path()};
            const auto world = nccl_world(bootstrap, gpu_of(bootstrap.rank()), options);
            const Tensor x = Tensor::ones({2, 2}, DType::f32, gpu_of(bootstrap.rank()));
            world->all().all_reduce(x).wait();
            x.to(kCpu);
            if (bootstrap.rank() == 0) {
              world->all().all_reduce(x).wait();
              x.to(kCpu);
              CHECK(world->failure() == why);
              CHECK(test::error_of([&] { world->all().barrier().wait(); }) == why);
            }
            // The hosts' world has failed, too.
            CHECK(test::error_of([&] { bootstrap.all().barrier().wait(); }) == why);
          });
        }) == "no error");
  const std::string dump = io::read_file(folder.path() + "/rank_0.txt");
  CHECK(dump.starts_with(why + "\n"));
  CHECK(dump.find("0 all_reduce 0 of group world sum f32 out 4 in 4 done ") != std::string::npos);
  CHECK(dump.find("1 all_reduce 1 of group world sum f32 out 4 in 4 enqueued ") !=
        std::string::npos);
}

TEST_CASE("nccl: a rank that throws stops the others at once") {
  std::string heard;
  std::latch connected(2);  // rank 1 must not leave while rank 0 connects
  CHECK(test::error_of([&] {
          over_nccl(2, [&](World& w, Device gpu) {
            const Tensor x = Tensor::ones({4}, DType::f32, gpu);
            w.all().all_reduce(x).wait();
            x.to(kCpu);
            connected.arrive_and_wait();
            if (w.rank() == 1) throw Error("out of patience");
            heard = test::error_of([&] {
              w.all().all_reduce(x).wait();
              x.to(kCpu);
              // Rank 1 leaves its communicators before it says why.
              const auto begun = std::chrono::steady_clock::now();
              while (w.failure().empty() &&
                     std::chrono::steady_clock::now() - begun < std::chrono::seconds(10))
                std::this_thread::yield();
              w.check_well();
            });
          });
        }) == "rank 1: out of patience");
  CHECK(heard == "rank 1: out of patience");
}

TEST_CASE("nccl: each rank gets its own GPU") {
  run_ranks(2, [](World& w) {
    for (const bool alone : {false, true})
      CHECK(gpu_of_rank(w, alone) ==
            Device{Device::Kind::cuda, static_cast<std::int16_t>(w.rank())});
  });
  run_ranks(3, [](World& w) {
    CHECK(gpu_of_rank(w, false).index == w.rank() % 2);
    CHECK(test::error_of([&] { gpu_of_rank(w, true); }) ==
          "nccl: ranks 0 and 2 would share a GPU, and each needs its own; start no more ranks on a "
          "machine than it has GPUs, or use another backend");
  });
}

TEST_CASE("nccl: machines and GPUs are told apart by more than a name and a PCI address") {
  // Two machines with one name and one address each, as in a cluster of clones.
  run_ranks(4, [](World& w) {
    const Machine machine{w.rank() < 2 ? "boot 1" : "boot 2", {"GPU a", "GPU b"}};
    CHECK(gpu_of_rank(w, true, machine).index == w.rank() % 2);
  });
  // Two containers of one machine that show one GPU each: of one GPU, or two slices of it.
  run_ranks(2, [](World& w) {
    CHECK(gpu_of_rank(w, true, {"boot 1", {w.rank() == 0 ? "slice 1" : "slice 2"}}).index == 0);
    CHECK(test::error_of([&] {
            gpu_of_rank(w, true, {"boot 1", {"GPU a"}});
          }).starts_with("nccl: ranks 0 and 1 would share a GPU, and each needs its own; "));
  });
  const Machine own = this_machine();
  CHECK(own.gpus == std::vector<std::string>{"emulated GPU 0", "emulated GPU 1"});
  CHECK(own.name.size() == 36);  // Linux's boot_id
}

TEST_CASE("nccl: groups of a mesh are connected at their first collective, once for equal ranks") {
  const int connects = emu::nccl_counts.connects, splits = emu::nccl_counts.splits;
  const auto made = [&] {
    return std::pair(emu::nccl_counts.connects - connects, emu::nccl_counts.splits - splits);
  };
  over_nccl(4, [&](World& w, Device gpu) {
    const DeviceMesh mesh(w, {.tp = 2, .ep = 2, .etp = 1});
    const auto sum_over = [&](const char* name) {
      const Tensor x = Tensor::full({3}, w.rank() + 1.0, DType::f32, gpu);
      mesh.group(name).all_reduce(x).wait();
      return x.to(kCpu).select(0, 0).item();
    };
    const auto together = [&](std::pair<int, int> want) {
      w.all().barrier().wait();
      CHECK(made() == want);
      w.all().barrier().wait();
    };
    together({4, 0});  // the world, by 4 ranks
    // Groups of one rank and of all ranks need no communicator of their own.
    CHECK(sum_over("pp") == w.rank() + 1);
    CHECK(sum_over("etp") == w.rank() + 1);
    CHECK(sum_over("tp_dp_cp") == 10);
    CHECK(w.communicators() == 1);
    together({4, 0});
    const double pair = w.rank() < 2 ? 3 : 7, apart = w.rank() % 2 == 0 ? 4 : 6;
    CHECK(sum_over("tp") == pair);
    together({4, 4});
    // The same ranks under other names.
    CHECK(sum_over("ep") == pair);
    CHECK(sum_over("tp_ep") == pair);
    CHECK(sum_over("mp") == pair);
    together({4, 4});
    CHECK(sum_over("dp") == apart);
    CHECK(sum_over("dp_cp") == apart);
    CHECK(sum_over("edp") == apart);
    CHECK(w.communicators() == 3);
    together({4, 8});
  });
}

TEST_CASE("nccl: lanes have streams and communicators of their own") {
  over_nccl(2, [](World& w, Device gpu) {
    const auto data = w.group("data", {0, 1}, Lane::data);
    const Tensor x = Tensor::full({5}, w.rank() + 1.0, DType::f32, gpu);
    data->all_reduce(x).wait();  // connects
    CHECK(w.communicators() == 2);
    CHECK(x.to(kCpu).select(0, 4).item() == 3);
    // Rank 1 comes to the collective of one lane when those of the other have ended.
    Work waits;
    if (w.rank() == 0) waits = data->all_reduce(x);
    const Tensor y = Tensor::full({5}, w.rank() + 1.0, DType::f32, gpu);
    w.all().all_reduce(y).wait();
    CHECK(y.to(kCpu).select(0, 4).item() == 3);
    if (w.rank() == 1) waits = data->all_reduce(x);
    waits.wait();
    CHECK(x.to(kCpu).select(0, 4).item() == 6);
  });
  over_nccl(2,
            [](World& w, Device gpu) {
              const Tensor x = Tensor::ones({5}, DType::f32, gpu);
              w.group("data", {0, 1}, Lane::data)->all_reduce(x).wait();
              w.all().all_reduce(x).wait();
              CHECK(w.communicators() == 1);
              CHECK(x.to(kCpu).select(0, 4).item() == 4);
            },
            {.lanes = 1});
}

TEST_CASE("nccl: streams are reused by those that ask for the same priority") {
  const Device gpu = gpu_of(0);
  cuda::Stream high = cuda::Stream::take(gpu, cuda::Priority::high);
  high.give_back();
  cuda::Stream normal = cuda::Stream::take(gpu);
  CHECK(normal.id() != high.id());
  CHECK(cuda::Stream::take(gpu, cuda::Priority::high).id() == high.id());
  high.give_back();
  normal.give_back();
}

TEST_CASE("nccl: a group of some ranks, in another order") {
  over_nccl(3, [&](World& w, Device gpu) {
    const auto group = w.group("backwards", {2, 0});
    CHECK((group != nullptr) == (w.rank() != 1));
    // Every rank takes part in the split, also one that is in none of its groups.
    const auto halves = w.split("halves", {{2}, {1, 0}});
    const Tensor x = Tensor::full({2}, w.rank(), DType::f32, gpu);
    if (halves->size() > 1) halves->broadcast(x, 0).wait();
    CHECK(x.to(kCpu).select(0, 0).item() == (w.rank() == 2 ? 2 : 1));
  });
}

// What becomes of the calls of a test: `fault` for the call `number` of a communicator of `size`
// ranks, on the rank of cuda:0.
struct Plan {
  NcclFault fault = NcclFault::none;
  std::int64_t number = 0;
  int size = 2;
};
Plan plan;

// The plan applies while it exists.
struct FaultScope {
  explicit FaultScope(const Plan& p, int version = 22809) {
    plan = p;
    emu::nccl_version = version;
    emu::nccl_fault = [](const emu::NcclCall& c) {
      return c.device == 0 && c.number == plan.number && c.size == plan.size ? plan.fault
                                                                             : NcclFault::none;
    };
  }
  ~FaultScope() {
    emu::nccl_fault = nullptr;
    emu::nccl_version = 22809;
  }
  FaultScope(const FaultScope&) = delete;
};

// Both ranks call an all_reduce of the world and wait until they have the sum; returns their
// errors.
std::array<std::string, 2> errors_of_sum(const WorldOptions& options) {
  std::array<std::string, 2> errors;
  test::error_of([&] {
    run_ranks(2, [&](World& bootstrap) {
      errors[static_cast<std::size_t>(bootstrap.rank())] = test::error_of([&] {
        const Device gpu = gpu_of(bootstrap.rank());
        const auto world = nccl_world(bootstrap, gpu, options);
        const Tensor x = Tensor::ones({4}, DType::f32, gpu);
        world->all().all_reduce(x).wait();
        CHECK(x.to(kCpu).numel() == 4);  // waits
        world->check_well();
      });
    });
  });
  return errors;
}

TEST_CASE("nccl: an error of NCCL reaches every rank") {
  const FaultScope faults({.fault = NcclFault::error});
  const auto errors = errors_of_sum({});
  CHECK(errors[0] == "rank 0: nccl: remote process exited or there was a network error");
  CHECK(errors[1] == errors[0]);
}

TEST_CASE("nccl: a rank that does not connect is reported, and so is a failure to") {
  {
    const FaultScope faults({.fault = NcclFault::hang, .number = -1});
    const auto errors = errors_of_sum({.timeout_s = 2});
    CHECK(errors[0].starts_with("connecting group world did not end within 2 s on rank "));
    CHECK(errors[1] == errors[0]);
  }
  const FaultScope faults({.fault = NcclFault::error, .number = -1});
  const auto errors = errors_of_sum({});
  CHECK(errors[0].ends_with("remote process exited or there was a network error"));
  CHECK(errors[1] == errors[0]);
}

TEST_CASE("nccl: a call that NCCL does not take over is reported") {
  const FaultScope faults({.fault = NcclFault::block});
  const auto errors = errors_of_sum({.timeout_s = 2});
  CHECK(errors[0].find("did not end within 2 s on rank ") != std::string::npos);
  CHECK(errors[1] == errors[0]);
}

// The first communicator is aborted while a kernel of the second one hangs.
TEST_CASE("nccl: all communicators are aborted, whichever hangs, and others hear it meanwhile") {
  for (const int version : {22809, 22000}) {
    CAPTURE(version);
    const FaultScope faults({.fault = NcclFault::hang, .number = 0, .size = 2}, version);
    const std::string why = test::error_of([] {
      run_ranks(2, [](World& bootstrap) {
        const Device gpu = gpu_of(bootstrap.rank());
        const auto world = nccl_world(bootstrap, gpu, {.timeout_s = 2});
        const auto pair = world->group("pair", {1, 0});
        const Tensor x = Tensor::ones({4}, DType::f32, gpu);
        pair->all_reduce(x).wait();
        CHECK(world->communicators() == 2);
        x.to(kCpu);  // waits until the kernel has been aborted
        bootstrap.all().barrier().wait();
      });
    });
    CHECK(
        why.starts_with("all_reduce 0 of group pair sum f32 [4] did not end within 2 s on rank "));
    CHECK(why.ends_with(": every rank came"));
  }
}

TEST_CASE("nccl: a collective that hangs in one lane ends those of all") {
  const FaultScope faults({.fault = NcclFault::hang, .number = 2, .size = 2});
  std::string heard[2];
  const std::string why = test::error_of([&] {
    run_ranks(2, [&](World& bootstrap) {
      const Device gpu = gpu_of(bootstrap.rank());
      const auto world = nccl_world(bootstrap, gpu, {.timeout_s = 2});
      const auto data = world->group("data", {0, 1}, Lane::data);
      const Tensor x = Tensor::ones({4}, DType::f32, gpu);
      Work last;
      for (int i = 0; i < 3; ++i) last = data->all_reduce(x);  // the third hangs
      const Tensor y = Tensor::ones({4}, DType::f32, gpu);
      for (int i = 0; i < 2; ++i) world->all().all_reduce(y).wait();
      CHECK(y.to(kCpu).select(0, 0).item() == 4);
      heard[bootstrap.rank()] = test::error_of([&] {
        for (;; std::this_thread::yield()) world->check_well();
      });
      last.wait();
    });
  });
  CHECK(why.starts_with("all_reduce 2 of group data sum f32 [4] did not end within 2 s on rank "));
  for (const std::string& text : heard) CHECK(text == why);
}

TEST_CASE("nccl: a group that a rank does not connect is reported, and so is a failure to") {
  const auto why = [](const Plan& p) {
    const FaultScope faults(p);
    return test::error_of([] {
      run_ranks(2, [](World& bootstrap) {
        const Device gpu = gpu_of(bootstrap.rank());
        const auto world = nccl_world(bootstrap, gpu, {.timeout_s = 2});
        plan.size = 2;  // no fault until the world is connected
        bootstrap.all().barrier().wait();
        const auto turned = world->split("turned", {{1, 0}});
        CHECK(world->communicators() == 1);
        turned->all_reduce(Tensor::ones({4}, DType::f32, gpu)).wait();
      });
    });
  };
  CHECK(why({.fault = NcclFault::hang, .number = -1, .size = 0})
            .starts_with("connecting group turned did not end within 2 s on rank "));
  CHECK(why({.fault = NcclFault::error, .number = -1, .size = 0})
            .ends_with("remote process exited or there was a network error"));
}

TEST_CASE("nccl: ranks that first use their groups in another order get an error") {
  CHECK(test::error_of([] {
          over_nccl(2, [](World& w, Device gpu) {
            const auto one = w.split("one", {{1, 0}}), other = w.split("other", {{1, 0}});
            const Tensor x = Tensor::ones({4}, DType::f32, gpu);
            (w.rank() == 0 ? one : other)->all_reduce(x).wait();
          });
        }) ==
        "rank 1: nccl: all ranks must first use their groups in the same order: rank 0 begins with "
        "one "
        "where rank 1 begins with other");
}

TEST_CASE("nccl: a rank that gives another shape is named") {
  const FaultScope faults({.fault = NcclFault::hang});  // as NCCL may then
  CHECK(test::error_of([] {
          run_ranks(2, [](World& bootstrap) {
            const Device gpu = gpu_of(bootstrap.rank());
            const auto world =
                nccl_world(bootstrap, gpu, {.timeout_s = bootstrap.rank() == 0 ? 2.0 : 600.0});
            const Tensor x = Tensor::ones({4 + bootstrap.rank()}, DType::f32, gpu);
            world->all().all_reduce(x).wait();
            x.to(kCpu);
            world->check_well();
          });
        }) ==
        "all_reduce 0 of group world sum f32 [4] did not end within 2 s on rank 0: rank 1 "
        "called all_reduce 0 of group world sum f32 [5]");
}

TEST_CASE("nccl: one communicator fails alone, and the whole job with it") {
  const FaultScope faults({.fault = NcclFault::error, .size = 2});
  std::string heard[2];
  test::error_of([&] {
    run_ranks(2, [&](World& bootstrap) {
      const Device gpu = gpu_of(bootstrap.rank());
      const auto world = nccl_world(bootstrap, gpu);
      const auto pair = world->group("pair", {1, 0});
      const Tensor x = Tensor::ones({4}, DType::f32, gpu);
      heard[bootstrap.rank()] = test::error_of([&] {
        pair->all_reduce(x).wait();
        if (bootstrap.rank() == 0) plan.size = 0;  // rank 0 has no more faults
        for (;;) {
          world->all().all_reduce(x, Reduce::max).wait();
          std::this_thread::yield();
        }
      });
    });
  });
  CHECK(heard[0] == "rank 0: nccl: remote process exited or there was a network error");
  CHECK(heard[1] == heard[0]);
}

TEST_CASE("nccl: nccl_world refuses other devices") {
  run_ranks(1, [](World& bootstrap) {
    CHECK(test::error_of([&] { nccl_world(bootstrap, kCpu); }) ==
          "nccl_world: device must be a cuda device, got cpu");
  });
  CHECK(nccl_version() == 22809);
}

}  // namespace weft::distributed::nccl_test
