// Jobs over NCCL that fail: ranks that are missing or throw, and an emulated NCCL that fails by
// plan.
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <latch>
#include <string>
#include <thread>

#include "weft/core/cuda.h"
#include "weft/cuda/emu/control.h"
#include "weft/distributed/nccl_world.h"
#include "weft/io/file.h"
#include "weft/tests/cuda/emu/nccl_ranks.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::distributed::nccl_test {
namespace {

using emu::NcclFault;

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

}  // namespace

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

TEST_CASE("nccl: the end of a job reports a collective that failed after or without a wait()") {
  const auto why = [](auto use) {
    const FaultScope faults({.fault = NcclFault::error, .number = 1});
    std::latch well(2);
    return test::error_of([&] {
      over_nccl(2, [&](World& w, Device gpu) {
        const Tensor x = Tensor::ones({4}, DType::f32, gpu);
        w.all().all_reduce(x).wait();
        x.to(kCpu);
        well.arrive_and_wait();  // else a fault of rank 0 may end rank 1's first call
        use(w, x);
      });
    });
  };
  const std::string network = "rank 0: nccl: remote process exited or there was a network error";
  CHECK(why([](World& w, const Tensor& x) { const Work dropped = w.all().all_reduce(x); }) ==
        network);
  CHECK(why([](World& w, const Tensor& x) { w.all().all_reduce(x).wait(); }) == network);
  // What the program has seen is not reported again.
  const auto see = [](auto check) {
    std::string seen;
    while ((seen = test::error_of(check)) == "no error") std::this_thread::yield();
    CHECK(seen.ends_with("there was a network error"));
  };
  CHECK(why([&](World& w, const Tensor& x) {
          const Work dropped = w.all().all_reduce(x);
          see([&] { w.check_well(); });
        }) == "no error");
  CHECK(why([&](World& w, const Tensor& x) {
          const Work dropped = w.all().all_reduce(x);
          see([&] { w.all().check_well(); });
        }) == "no error");
  CHECK(why([&](World& w, const Tensor& x) {
          const Work first = w.all().all_reduce(x);
          see([&] { w.all().all_reduce(x).wait(); });
        }) == "no error");
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

}  // namespace weft::distributed::nccl_test
