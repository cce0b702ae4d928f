// Lanes: collectives of different lanes run beside each other, those of one lane in call order, and
// the number of queues changes no bit.
#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "weft/distributed/device_mesh.h"
#include "weft/distributed/flight_recorder.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"

namespace weft::distributed::lanes_test {
namespace {

std::shared_ptr<ProcessGroup> all_in(World& w, Lane lane) {
  return w.group(name(lane), w.all().ranks(), lane);
}

std::ptrdiff_t threads_of_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// What went wrong on the first rank that failed; the error of each rank in `heard`.
std::string failure(int ranks, const std::function<void(World&)>& f,
                    const WorldOptions& options = {}) {
  return test::error_of([&] { run_ranks(ranks, f, options); });
}

constexpr Lane kEach[] = {Lane::model, Lane::data, Lane::pipeline};

}  // namespace

TEST_CASE("lanes: a lane's queue, by the number of queues") {
  for (const Lane lane : kEach) CHECK(queue_of(lane, 1) == 0);
  CHECK(queue_of(Lane::model, 2) == queue_of(Lane::pipeline, 2));
  CHECK(queue_of(Lane::model, 2) != queue_of(Lane::data, 2));
  CHECK(queue_of(Lane::model, 3) != queue_of(Lane::pipeline, 3));
  for (const int lanes : {0, 4})
    CHECK(failure(1, [](World&) {}, {.lanes = lanes}) ==
          message("rank 0: world: lanes must be in [1, 3], got {}", lanes));
  CHECK(failure(2, [](World& w) {
          w.group("g", {0, 1}, w.rank() ? Lane::data : Lane::model);
        }).find("group g: all ranks must make it in the same lane: rank ") != std::string::npos);
}

TEST_CASE("lanes: a collective completes while one of another lane waits for a rank") {
  test::distributed_test({2, 4}, [](World& w) {
    for (const Lane waits : {Lane::data, Lane::pipeline, Lane::model}) {
      const auto slow = all_in(w, waits);
      const auto fast = all_in(w, waits == Lane::model ? Lane::data : Lane::model);
      const Tensor x = Tensor::full({20000}, w.rank() + 1.0), y = Tensor::ones({70000});
      // The last rank comes to the slow lane when the other collectives have completed. In one
      // queue the first would wait for it, and it for them.
      const bool late = w.rank() + 1 == w.size();
      Work waiting;
      if (!late) waiting = slow->all_reduce(x);
      for (int i = 0; i < 5; ++i) fast->all_reduce(y, Reduce::max).wait();
      fast->broadcast(y, 0).wait();
      fast->barrier().wait();
      if (late) waiting = slow->all_reduce(x);
      waiting.wait();
      CHECK(x.select(0, 19999).item() == w.size() * (w.size() + 1) / 2);
    }
  });
}

TEST_CASE("lanes: one queue runs everything in call order") {
  run_ranks(2,
            [](World& w) {
              const auto data = all_in(w, Lane::data), model = all_in(w, Lane::model);
              const Tensor x = Tensor::ones({50000}), y = Tensor::ones({10});
              Work last;
              for (int i = 0; i < 4; ++i) {
                last = data->all_reduce(x, Reduce::max);
                model->all_reduce(y, Reduce::max).wait();
              }
              last.wait();
              const std::vector<FlightEntry> entries = w.recorder().entries();
              CHECK(entries.size() == 8);
              for (std::size_t i = 1; i < entries.size(); ++i)
                CHECK(entries[i].started_s >= entries[i - 1].ended_s);
            },
            {.lanes = 1});
}

TEST_CASE("lanes: any number of them gives the same collectives and bits") {
  constexpr int kRanks = 4;
  struct Result {
    std::vector<std::string> traces[kLanes];
    Tensor values[3];
  };
  Result results[kLanes][kRanks];
  for (int lanes = 1; lanes <= kLanes; ++lanes)
    run_ranks(kRanks,
              [&](World& w) {
                const DeviceMesh mesh(w, {.tp = 2, .ep = 2, .etp = 1});
                const Tensor grads[] = {
                    test::random({6001}, 1 + static_cast<std::uint64_t>(w.rank())),
                    test::random({1000}, 9 + static_cast<std::uint64_t>(w.rank()))};
                Tensor x = test::random({777}, 17 + static_cast<std::uint64_t>(w.rank()));
                std::vector<Work> works;
                for (int i = 0; i < 12; ++i) {
                  // As of buckets whose sums are summed again, and of layers.
                  works.push_back(mesh.dp_cp().all_reduce(grads[0]));
                  works.push_back(mesh.group("tp_grad").all_reduce(grads[0]));
                  mesh.tp().at_once().all_reduce(x).wait();
                  works.push_back(mesh.edp().all_reduce(grads[1]));
                  Work late = mesh.ep().all_reduce(x);
                  mesh.tp().all_reduce(x).wait();
                  late.wait();
                  x.mul_(0.25);
                }
                for (Work& work : works) work.wait();
                test::check_same_traces(w);
                Result& r = results[lanes - 1][w.rank()];
                for (const Lane lane : kEach)
                  r.traces[static_cast<int>(lane)] = collective_trace(w.recorder(), lane);
                r.values[0] = grads[0];
                r.values[1] = grads[1];
                r.values[2] = x;
              },
              {.lanes = lanes});
  for (int rank = 0; rank < kRanks; ++rank) {
    const Result& one = results[0][rank];
    CHECK(one.traces[static_cast<int>(Lane::model)].size() == 36 + 2);
    CHECK(one.traces[static_cast<int>(Lane::data)].size() == 36);
    for (int lanes = 2; lanes <= kLanes; ++lanes) {
      const Result& several = results[lanes - 1][rank];
      CHECK(several.traces[0] == one.traces[0]);
      CHECK(several.traces[1] == one.traces[1]);
      for (int i = 0; i < 3; ++i)
        CHECK(test::different_bits(several.values[i], one.values[i]) == "");
    }
  }
}

TEST_CASE("lanes: a mesh puts gradients, stages and layers into different ones") {
  run_ranks(2, [](World& w) {
    const DeviceMesh mesh(w);
    for (const char* of : {"dp", "dp_cp", "edp", "tp_grad", "etp_grad"})
      CHECK(mesh.group(of).lane() == Lane::data);
    for (const char* of : {"tp", "cp", "ep", "etp", "tp_ep", "tp_cp", "mp", "world"})
      CHECK(mesh.group(of).lane() == Lane::model);
    CHECK(mesh.pp().lane() == Lane::pipeline);
  });
}

TEST_CASE("lanes: counts are kept by lane, and a fake rank's equal a real one's") {
  const auto use = [](World& w, Device device) {
    const Tensor x = Tensor::zeros({300}, DType::f32, device);
    all_in(w, Lane::model)->all_reduce(x).wait();
    all_in(w, Lane::data)->all_gather(Tensor::zeros({600}, DType::f32, device), x).wait();
    const auto stages = all_in(w, Lane::pipeline);
    const Tensor y = Tensor::zeros({7}, DType::f64, device);
    stages
        ->batch({{x, 1 - w.rank()}, {y, w.rank()}},
                {{y.clone(), w.rank()}, {x.clone(), 1 - w.rank()}})
        .wait();
  };
  for (const int lanes : {1, 2, 3}) {
    CommStats real[2][kLanes];
    run_ranks(2,
              [&](World& w) {
                use(w, kCpu);
                for (const Lane lane : kEach)
                  real[w.rank()][static_cast<int>(lane)] = w.stats(lane);
              },
              {.lanes = lanes});
    for (int rank = 0; rank < 2; ++rank) {
      const auto fake = fake_world(rank, 2, {.lanes = lanes});
      use(*fake, kMeta);
      std::int64_t sum = 0;
      for (const Lane lane : kEach) {
        const CommStats got = fake->stats(lane), want = real[rank][static_cast<int>(lane)];
        CHECK(got.calls == 1);
        CHECK(want.calls == 1);
        CHECK(got.bytes_sent == want.bytes_sent);
        sum += got.bytes_sent;
      }
      CHECK(fake->stats(Lane::data).bytes_sent == 1200);
      CHECK(fake->stats(Lane::pipeline).bytes_sent == 1200);
      CHECK(fake->stats().bytes_sent == sum);
      CHECK(fake->stats().calls == 3);
    }
  }
}

TEST_CASE("lanes: a communicator for each queue that needs one, as the fake world counts them") {
  const auto count = [](int lanes) {
    const auto world = fake_world(0, 8, {.lanes = lanes});
    const DeviceMesh mesh(*world, {.tp = 2});
    const Tensor x = Tensor::zeros({4}, DType::f32, kMeta);
    for (const char* of : {"tp", "tp_grad", "dp", "dp_cp"}) mesh.group(of).all_reduce(x).wait();
    return world->communicators();
  };
  CHECK(count(1) == 3);  // world, tp, dp
  CHECK(count(2) == 4);  // and tp for gradients
  CHECK(count(3) == 4);
}

TEST_CASE("lanes: a queue has a thread from its first collective that nobody waits for") {
  run_ranks(1, [](World& w) {
    const std::ptrdiff_t before = threads_of_process();
    const auto data = all_in(w, Lane::data);
    const Tensor x = Tensor::ones({4});
    w.all().at_once().all_reduce(x).wait();
    data->at_once().all_reduce(x).wait();
    CHECK(threads_of_process() == before);
    data->all_reduce(x).wait();
    CHECK(threads_of_process() == before + 1);
    // Nobody waits for it: it completes when the world ends.
    (void)w.all().at_once().all_reduce(x);
  });
}

TEST_CASE("lanes: a failure in one lane ends the collectives of all") {
  for (const Lane lane : {Lane::data, Lane::model}) {
    std::string heard[2][2];
    const std::string why = failure(2, [&](World& w) {
      const auto wrong = all_in(w, lane);
      const auto other = all_in(w, lane == Lane::data ? Lane::pipeline : Lane::data);
      const Tensor x = Tensor::ones({100}), y = Tensor::ones({w.rank() ? 50 : 60});
      Work waits;
      if (w.rank() == 0) waits = other->all_reduce(x);  // rank 1 never comes
      heard[w.rank()][0] = test::error_of([&] { wrong->all_reduce(y).wait(); });
      heard[w.rank()][1] = test::error_of([&] {
        if (w.rank() == 0) waits.wait();
        other->all_reduce(x).wait();
      });
      w.all().barrier().wait();
    });
    CHECK(why.starts_with("all ranks of a group must give the same rows: rank 0 called "));
    for (const auto& rank : heard)
      for (const std::string& text : rank) CHECK(text == why);
  }
}

TEST_CASE("lanes: a timeout names the collective of the lane that hangs, and the dump its lane") {
  std::string dump;
  const auto late = [&](World& w) {
    const auto data = all_in(w, Lane::data);
    // The other lane works meanwhile, in a group that waits for no other rank: on a machine that
    // stalls, nothing but the collective that hangs can be late.
    const auto own = w.split("own", {{0}, {1}});
    const Tensor x = Tensor::ones({8});
    Work hangs;
    if (w.rank() == 0) hangs = data->all_reduce(x);
    try {
      for (;;) {
        own->all_reduce(x, Reduce::max).wait();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    } catch (const Error&) {
      // The other lane may hear of the failure later.
      if (w.rank() == 0) {
        test::error_of([&] { hangs.wait(); });
        dump = w.recorder().dump();
      }
      throw;
    }
  };
  CHECK(failure(2, late, {.timeout_s = 1, .recorded = 1 << 20}) ==
        "all_reduce 0 of group data, f32 [8]: rank 1 did not come within 1 s");
  CHECK(dump.find("0 all_reduce 0 of group data sum f32 out 8 in 8 failed ") == 0);
  CHECK(dump.find(" lane data\n1 all_reduce 0 of group own max f32 ") != std::string::npos);
  CHECK(dump.find(" lane model\n") != std::string::npos);
}

TEST_CASE("batch: errors name the call") {
  run_ranks(2, [](World& w) {
    ProcessGroup& g = w.all();
    const Tensor x = Tensor::zeros({6}), y = Tensor::zeros({2});
    const int other = 1 - w.rank();
    CHECK(test::error_of([&] {
            (void)g.batch({{x, 2}}, {});
          }) == "batch: ranks must be below 2, got 2");
    CHECK(test::error_of([&] {
            (void)g.batch({{Tensor(), other}}, {});
          }) == "batch: a tensor is null");
    CHECK(test::error_of([&] {
            (void)g.batch({{x, other}}, {{x.narrow(0, 2, 2), other}});
          }) == "batch: a tensor that receives must not share memory with another, got receive 0");
    CHECK(test::error_of([&] {
            (void)g.batch({}, {{y, other}, {y, other}});
          }) == "batch: a tensor that receives must not share memory with another, got receive 1");
    CHECK(test::error_of([&] {
            (void)g.batch({{x, other}}, {{empty_like(y).to(kMeta), other}});
          }).starts_with("batch: all tensors must be on one device, got "));
    g.barrier().wait();
  });
  CHECK(failure(2,
                [](World& w) {
                  const Tensor x = Tensor::zeros({4}), y = Tensor::zeros({5});
                  if (w.rank() == 0) w.all().batch({{x, 1}, {x, 1}}, {}).wait();
                  if (w.rank() == 1) w.all().batch({}, {{x.clone(), 0}, {y, 0}}).wait();
                }) ==
        "sender and receiver must agree: rank 0 called batch 0 of group world, f32 [4], rank 1 "
        "called batch 0 of group world, f32 [5]");
  CHECK(failure(2,
                [](World& w) {
                  const Tensor x = Tensor::zeros({4});
                  if (w.rank() == 0) w.all().batch({{x, 1}}, {{x.clone(), 1}}).wait();
                  while (w.rank() == 1 && w.failure().empty())
                    std::this_thread::sleep_for(std::chrono::milliseconds(1));
                },
                {.timeout_s = 1}) ==
        "batch 0 of group world, 1 sends and 1 receives: rank 1 did not come within 1 s");
}

TEST_CASE("batch: rings in both directions beside another lane") {
  test::distributed_test({2, 3, 4}, [](World& w) {
    const int n = w.size(), next = (w.rank() + 1) % n, last = (w.rank() + n - 1) % n;
    const auto stages = all_in(w, Lane::pipeline);
    const Tensor up = Tensor::full({4099}, w.rank()), down = Tensor::full({1}, w.rank());
    const Tensor from_last = Tensor::zeros({4099}), from_next = Tensor::zeros({1});
    const Tensor x = Tensor::ones({100});
    for (int i = 0; i < 20; ++i) {
      Work moving =
          stages->batch({{up, next}, {down, last}}, {{from_last, last}, {from_next, next}});
      w.all().all_reduce(x, Reduce::max).wait();
      moving.wait();
      CHECK(from_last.select(0, 4098).item() == last);
      CHECK(from_next.item() == next);
    }
  });
}

}  // namespace weft::distributed::lanes_test
