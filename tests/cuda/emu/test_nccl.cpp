// Groups over NCCL, as far as they can be tested without GPUs: the calls with their counts and
// streams, and what a stream waits for. Ranks are threads, each with an emulated GPU; the
// emulated NCCL adds in rank order.
#include <doctest/doctest.h>

#include <latch>
#include <string>
#include <utility>

#include "weft/autograd/elementwise.h"
#include "weft/core/cuda.h"
#include "weft/cuda/emu/control.h"
#include "weft/distributed/device_mesh.h"
#include "weft/distributed/gpu_of_rank.h"
#include "weft/distributed/nccl_world.h"
#include "weft/tests/cuda/emu/nccl_ranks.h"
#include "weft/tests/group_conformance.h"
#include "weft/tests/support.h"

namespace weft::distributed::nccl_test {

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

TEST_CASE("nccl: memory of a collective that a stream has joined is reused there at once") {
  const auto bytes = [](Device gpu) { return Tensor::empty({5000}, DType::f32, gpu); };
  // After call(x), while rank 1 holds the collective up: whether the block of x is reused.
  const auto reused = [&](auto call) {
    bool result = false;
    std::latch looked(1);
    over_nccl(2, [&](World& w, Device gpu) {
      w.all().barrier().wait();
      if (w.rank() == 1) {
        looked.wait();
        w.all().all_reduce(Tensor::ones({5000}, DType::f32, gpu)).wait();
        return;
      }
      Tensor x = Tensor::ones({5000}, DType::f32, gpu);
      const void* const where = x.raw();
      call(w, x, gpu);
      x = Tensor();
      result = bytes(gpu).raw() == where;
      looked.count_down();
      cuda::synchronize(gpu);
      const Tensor again[] = {bytes(gpu), bytes(gpu)};
      CHECK((again[0].raw() == where || again[1].raw() == where));
    });
    return result;
  };
  CHECK(reused([](World& w, const Tensor& x, Device) { w.all().all_reduce(x).wait(); }));
  CHECK(!reused(
      [](World& w, const Tensor& x, Device) { const Work dropped = w.all().all_reduce(x); }));
  CHECK(!reused([](World& w, const Tensor& x, Device gpu) {  // joined by another stream
    Work work = w.all().all_reduce(x);
    const cuda::OwnStream other(gpu);
    work.wait();
  }));
}

TEST_CASE("nccl: a connection leaves NCCL the memory that was cached, if there is little other") {
  const std::int64_t all = emu::control.memory_bytes;
  over_nccl(2, [](World& w, Device gpu) {
    const auto cached = [&] { return memory_stats(gpu).cached_bytes; };
    { const Tensor large = Tensor::empty({64 << 20}, DType::u8, gpu); }
    w.all().barrier().wait();
    CHECK(cached() >= 64 << 20);
    if (w.rank() == 0) emu::control.memory_bytes = std::int64_t{1} << 29;
    w.all().barrier().wait();
    w.split("turned", {{1, 0}})->barrier().wait();
    CHECK(cached() < 64 << 20);
  });
  emu::control.memory_bytes = all;
}

TEST_CASE("nccl: tensors must be on the rank's GPU") {
  over_nccl(1, [](World& w, Device) {
    CHECK(test::error_of([&] { w.all().all_reduce(Tensor::ones({4})).wait(); }) ==
          "all_reduce: device must be cuda:0 or meta, got cpu");
  });
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

TEST_CASE("nccl: kernels of all lanes fit on the GPU together") {
  const auto blocks = [](int multiprocessors, int lanes) {
    const int all = std::exchange(emu::control.multiprocessors, multiprocessors);
    over_nccl(1, [](World& w, Device) { w.all().barrier().wait(); }, {.lanes = lanes});
    emu::control.multiprocessors = all;
    return emu::nccl_counts.max_blocks.load();
  };
  CHECK(blocks(132, 3) == 32);
  CHECK(blocks(58, 3) == 19);
  CHECK(blocks(58, 2) == 29);
  CHECK(blocks(58, 1) == 0);
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

TEST_CASE("nccl: nccl_world refuses other devices") {
  run_ranks(1, [](World& bootstrap) {
    CHECK(test::error_of([&] { nccl_world(bootstrap, kCpu); }) ==
          "nccl_world: device must be a cuda device, got cpu");
  });
  CHECK(nccl_version() == 22809);
}

}  // namespace weft::distributed::nccl_test
