// Groups over NCCL, as far as they can be tested without GPUs: the calls with their counts and
// streams, and what happens if a rank is missing. Ranks are threads, each with an emulated GPU; the
// emulated NCCL adds in rank order.
#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "weft/autograd/elementwise.h"
#include "weft/core/cuda.h"
#include "weft/cuda/emu/control.h"
#include "weft/distributed/gpu_of_rank.h"
#include "weft/distributed/nccl_world.h"
#include "weft/tests/group_conformance.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::distributed::nccl_test {
namespace {

Device gpu_of(int rank) { return {Device::Kind::cuda, static_cast<std::int16_t>(rank % 2)}; }

// f(world over NCCL, its device) on every rank.
template <class F>
void over_nccl(int ranks, F f, const WorldOptions& options = {}) {
  run_ranks(ranks, [&](World& bootstrap) {
    const Device gpu = gpu_of(bootstrap.rank());
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
  run_ranks(2, [&](World& bootstrap) {
    const WorldOptions options{.timeout_s = 0.3, .dump_folder = folder.path()};
    const auto world = nccl_world(bootstrap, gpu_of(bootstrap.rank()), options);
    if (bootstrap.rank() == 0) {
      const Tensor x = Tensor::ones({4}, DType::f32, gpu_of(0));
      const std::string why =
          "all_reduce 0 of group world sum f32 did not end within 0.3 s on rank 0: a rank did not "
          "come";
      CHECK(test::error_of([&] { world->all().all_reduce(x).wait(); }) == why);
      CHECK(test::error_of([&] { world->all().barrier().wait(); }) == why);
      CHECK(std::filesystem::exists(folder.path() + "/rank_0.txt"));
    }
    bootstrap.all().barrier().wait();
  });
}

TEST_CASE("nccl: a rank that throws stops the others at once") {
  std::string heard;
  CHECK(test::error_of([&] {
          over_nccl(2, [&](World& w, Device gpu) {
            w.all().all_reduce(Tensor::ones({4}, DType::f32, gpu)).wait();
            if (w.rank() == 1) throw Error("out of patience");
            heard = test::error_of(
                [&] { w.all().all_reduce(Tensor::ones({4}, DType::f32, gpu)).wait(); });
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

TEST_CASE("nccl: an NCCL error reaches the ranks") {
  run_ranks(2, [&](World& bootstrap) {
    const auto world = nccl_world(bootstrap, gpu_of(bootstrap.rank()));
    const Tensor x = Tensor::ones({4}, DType::f32, gpu_of(bootstrap.rank()));
    world->all().all_reduce(x).wait();
    bootstrap.all().barrier().wait();
    emu::nccl_failure = "remote process exited or there was a network error";
    std::string error = "no error";
    for (int i = 0; i < 200 && error == "no error"; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      error = test::error_of([&] { world->all().all_reduce(x).wait(); });
    }
    CHECK(error == message("rank {}: nccl: remote process exited or there was a network error",
                           bootstrap.rank()));
    bootstrap.all().barrier().wait();
    emu::nccl_failure = nullptr;
  });
}

TEST_CASE("nccl: nccl_world refuses other devices") {
  run_ranks(1, [](World& bootstrap) {
    CHECK(test::error_of([&] { nccl_world(bootstrap, kCpu); }) ==
          "nccl_world: device must be a cuda device, got cpu");
  });
  CHECK(nccl_version() == 22809);
}

}  // namespace weft::distributed::nccl_test
