#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "weft/distributed/thread_channel.h"
#include "weft/distributed/world.h"
#include "weft/io/file.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::distributed::process_group_errors_test {
namespace {

/// The error that stops a job of this many ranks.
std::string failure(int ranks, const std::function<void(World&)>& f,
                    const WorldOptions& options = {}) {
  return test::error_of([&] { run_ranks(ranks, f, options); });
}

/// Increments a number when the thread ends: by then the rank has left and the others can notice.
struct AtThreadEnd {
  std::atomic<int>* number = nullptr;
  ~AtThreadEnd() {
    if (number) ++*number;
  }
};
thread_local AtThreadEnd at_thread_end;

WorldOptions in_time(double timeout_s) {
  WorldOptions options;
  options.timeout_s = timeout_s;
  return options;
}

}  // namespace

TEST_CASE("process_group errors: mismatched calls report what each rank called") {
  const Tensor x = Tensor::zeros({4, 2});
  CHECK(failure(3,
                [&](World& w) {
                  if (w.rank() == 2)
                    w.all().barrier().wait();
                  else
                    w.all().all_reduce(Tensor::zeros({4, 2})).wait();
                }) ==
        "all ranks of a group must make the same calls: rank 0 called all_reduce 0 of group "
        "world, f32 [4, 2], rank 2 called barrier 0 of group world");
  CHECK(
      failure(2,
              [&](World& w) {
                w.all().barrier().wait();
                w.all().all_reduce(Tensor::zeros({4}), w.rank() ? Reduce::max : Reduce::sum).wait();
              }) ==
      "all ranks of a group must make the same calls: rank 0 called all_reduce 1 of group "
      "world, f32 [4], rank 1 called all_reduce max 1 of group world, f32 [4]");
  CHECK(failure(2, [&](World& w) { w.all().broadcast(Tensor::zeros({4}), w.rank()).wait(); }) ==
        "all ranks of a group must make the same calls: rank 0 called broadcast 0 of group "
        "world, f32 [4], from rank 0, rank 1 called broadcast 0 of group world, f32 [4], from rank "
        "1");
  CHECK(failure(2,
                [&](World& w) {
                  w.all().all_reduce(Tensor::zeros({4}, w.rank() ? DType::f64 : DType::f32)).wait();
                }) ==
        "all ranks of a group must give the same dtype: rank 0 called all_reduce 0 of group "
        "world, f32 [4], rank 1 called all_reduce 0 of group world, f64 [4]");
  CHECK(failure(2, [&](World& w) { w.all().all_reduce(Tensor::zeros({4 + w.rank()})).wait(); }) ==
        "all ranks of a group must give the same rows: rank 0 called all_reduce 0 of group "
        "world, f32 [4], rank 1 called all_reduce 0 of group world, f32 [5]");
  CHECK(failure(2,
                [&](World& w) {
                  const Rows rows = w.rank() ? Rows{1, 2} : Rows{2, 1};
                  const Tensor in = Tensor::zeros({2}), out = Tensor::zeros({3});
                  w.all().all_gather(out, in, rows).wait();
                }) ==
        "all ranks of a group must give the same rows: rank 0 called all_gather 0 of group "
        "world, f32 [3] from f32 [2], rank 1 called all_gather 0 of group world, f32 [3] from "
        "f32 [2]");
  CHECK(failure(2,
                [&](World& w) {
                  const Tensor in = Tensor::zeros({4, 3}), out = Tensor::zeros({4, 3});
                  w.all().all_to_all(out, in, {2, 2}, {2, 2}).wait();
                  const Tensor more = Tensor::zeros({w.rank() ? 3 : 4, 3});
                  w.all().all_to_all(out, more, {2, 2}, w.rank() ? Rows{1, 2} : Rows{2, 2}).wait();
                }) ==
        "rank 0 must expect what rank 1 sends, 3 elements, got 6: rank 1 called all_to_all 1 "
        "of group world, f32 [4, 3] from f32 [3, 3], rank 0 called all_to_all 1 of group "
        "world, f32 [4, 3] from f32 [4, 3]");
  CHECK(failure(2,
                [&](World& w) {
                  if (w.rank() == 0)
                    w.all().send(Tensor::zeros({4}), 1).wait();
                  else
                    w.all().receive(Tensor::zeros({5}), 0).wait();
                }) ==
        "sender and receiver must agree: rank 0 called send 0 of group world, f32 [4], rank 1 "
        "called receive 0 of group world, f32 [5]");
}

TEST_CASE("process_group errors: mismatched groups") {
  CHECK(failure(2,
                [&](World& w) {
                  if (w.rank() == 0) (void)w.group("tp", {0, 1});
                  w.all().barrier().wait();
                  (void)w.group("dp", {1});
                  w.all().barrier().wait();
                })
            .find("group: all ranks must make the same groups in the same order: rank ") !=
        std::string::npos);
  CHECK(failure(1, [&](World& w) { (void)w.group("tp", {}); }) ==
        "rank 0: group tp: needs at least one rank");
  CHECK(failure(1, [&](World& w) {
          (void)w.group("tp", {0, 0});
        }) == "rank 0: group tp: rank 0 is named twice");
  CHECK(failure(1, [&](World& w) { (void)w.group("tp", {1}); }) ==
        "rank 0: group tp: ranks must be below 1, got 1");
}

TEST_CASE("process_group errors: ranks that wait name a rank that has ended") {
  std::atomic<int> gone{0};
  CHECK(failure(4, [&](World& w) {
          if (w.rank() == 1 || w.rank() == 2) {
            at_thread_end.number = &gone;
            return;
          }
          while (gone < 2) std::this_thread::yield();
          w.all().all_reduce(Tensor::zeros({3})).wait();
        }) == "all_reduce 0 of group world, f32 [3]: ranks 1, 2 ended before");
  CHECK(failure(2, [](World& w) {
          if (w.rank() == 0) w.all().receive(Tensor::zeros({3}, DType::i64), 1).wait();
        }) == "receive 0 of group world, i64 [3]: rank 1 ended before");
  CHECK(failure(2, [](World& w) {
          if (w.rank() == 0) w.all().send(Tensor::zeros({3}), 1).wait();
        }) == "send 0 of group world, f32 [3]: rank 1 ended before");
}

TEST_CASE("process_group errors: a rank that throws stops the others") {
  CHECK(failure(3, [](World& w) {
          if (w.rank() == 1) throw Error("no more");
          w.all().barrier().wait();
        }) == "rank 1: no more");
  CHECK(failure(2, [](World& w) {
          if (w.rank() == 1) throw 3;
          w.all().barrier().wait();
        }) == "rank 1: stopped by an exception that is no std::exception");
  Fault fault = Fault::system;
  try {
    run_ranks(2, [](World& w) {
      check(w.rank() == 0, "x: must be {}", 1);
      w.all().barrier().wait();
    });
  } catch (const Error& e) {
    fault = e.fault();
  }
  CHECK(fault == Fault::user);
}

TEST_CASE("process_group errors: a timeout names the rank, the collective and its shapes") {
  std::atomic<int> given_up{0};
  const auto late = [&](World& w) {
    const auto group = w.group("dp", {2, 0, 1});
    group->barrier().wait();
    if (w.rank() == 1)
      while (given_up < 2) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    try {
      group->all_gather(Tensor::zeros({3, 5}), Tensor::zeros({1, 5})).wait();
    } catch (const Error&) {
      ++given_up;
      throw;
    }
  };
  CHECK(failure(3, late, in_time(5)) ==
        "all_gather 1 of group dp, f32 [3, 5] from f32 [1, 5]: rank 1 did not come within 5 s");
  CHECK(failure(
            2,
            [](World& w) {
              // Each rank waits for the other one to receive what it sends.
              w.all().send(Tensor::zeros({2}), 1 - w.rank()).wait();
            },
            in_time(0.1))
            .find(" did not come within 0.1 s") != std::string::npos);
}

TEST_CASE("process_group errors: after a failure every collective fails with the same message") {
  std::atomic<int> told{0};
  run_ranks(3, [&](World& w) {
    const auto group = w.group("tp", {0, 1, 2});
    const std::string first = test::error_of([&] {
      if (w.rank() == 0)
        w.all().barrier().wait();
      else
        w.all().all_reduce(Tensor::zeros({2})).wait();
    });
    CHECK(first.find("all ranks of a group must make the same calls") == 0);
    CHECK(test::error_of([&] { group->barrier().wait(); }) == first);
    Work work = group->all_reduce(Tensor::zeros({2}));
    CHECK(test::error_of([&] { work.wait(); }) == first);
    CHECK(work.done());
    work.wait();  // reported once
    ++told;
  });
  CHECK(told == 3);
}

TEST_CASE("process_group errors: the calling rank reports wrong arguments") {
  const auto world = fake_world(1, 4);
  ProcessGroup& g = world->all();
  const Tensor x = Tensor::zeros({8, 2}), part = Tensor::zeros({2, 2});
  const auto error = [](auto f) { return test::error_of([&] { f().wait(); }); };
  CHECK(error([&] { return g.all_reduce({}); }) == "all_reduce: a tensor is null");
  CHECK(error([&] { return g.all_reduce(test::strided(x)); }) ==
        "all_reduce: tensors must be contiguous, got [8, 2] with strides [4, 2]");
  CHECK(error([&] { return g.all_reduce(Tensor::zeros({2}, DType::boolean)); }) ==
        "all_reduce: dtype must be one of f32, f64, bf16, f16, i32, i64, u8, got bool");
  CHECK(error([&] { return g.reduce_scatter(part.to(DType::e5m2), x.to(DType::e5m2)); }) ==
        "reduce_scatter: dtype must be one of f32, f64, bf16, f16, i32, i64, u8, got e5m2");
  CHECK(error([&] { return g.all_gather(x, part.to(DType::f64)); }) ==
        "all_gather: out must have the dtype of in, f64, got f32");
  CHECK(error([&] {
          return g.all_gather(x, Tensor::zeros({2, 2}, DType::f32, kMeta));
        }) == "all_gather: out must be on the device of in, meta, got cpu");
  CHECK(error([&] {
          return g.all_gather(x, Tensor::zeros({2, 3}));
        }) == "all_gather: rows of out must be as long as those of in [2, 3], got [8, 2]");
  CHECK(error([&] {
          return g.all_gather(Tensor::zeros({7, 2}), part);
        }) == "all_gather: 7 rows do not divide among 4 ranks; say how many each has");
  CHECK(error([&] {
          return g.all_gather(x, part, {2, 2, 4});
        }) == "all_gather: rows must have one number for each of 4 ranks, got 3");
  CHECK(error([&] {
          return g.all_gather(x, part, {2, 2, 5, -1});
        }) == "all_gather: rows must be at least 0, got -1");
  CHECK(error([&] {
          return g.all_gather(x, part, {2, 2, 4, 1});
        }) == "all_gather: rows must add up to 8, got 9");
  CHECK(error([&] {
          return g.all_gather(x, part, {2, 3, 3, 0});
        }) == "all_gather: in must have 3 rows, got 2");
  CHECK(error([&] {
          return g.all_to_all(Tensor::zeros({8, 2}), x, {2, 3, 2, 1}, {3, 2, 2, 1});
        }) == "all_to_all: a rank must expect the 4 elements that it sends itself, got 6");
  CHECK(error([&] { return g.all_gather(x, x.narrow(0, 3, 2)); }) ==
        "all_gather: in shares memory with more than the rows of its own rank");
  CHECK(error([&] { return g.reduce_scatter(x.narrow(0, 0, 2), x); }) ==
        "reduce_scatter: out shares memory with more than the rows of its own rank");
  CHECK(error([&] {
          return g.reduce_scatter(part, x, {2, 3, 3, 0});
        }) == "reduce_scatter: out must have 3 rows, got 2");
  CHECK(error([&] { return g.all_to_all(x, x); }) ==
        "all_to_all: out must not share memory with in");
  CHECK(error([&] { return g.exchange(x.narrow(0, 0, 4), 0, x.narrow(0, 3, 4), 2); }) ==
        "exchange: out must not share memory with in");
  CHECK(error([&] { return g.exchange(x, 0, part, 4); }) ==
        "exchange: from and to must be ranks below 4, got 0 and 4");
  CHECK(error([&] { return g.broadcast(x, 4); }) ==
        "broadcast: root must be a rank below 4, got 4");
  CHECK(error([&] { return g.send(x, 1); }) == "send: to must be another rank below 4, got 1");
  CHECK(error([&] { return g.receive(x, -1); }) ==
        "receive: from must be another rank below 4, got -1");
  // None of the calls was made.
  CHECK(g.calls() == 0);
  CHECK(world->recorder().count() == 0);
  g.all_reduce(x).wait();
  CHECK(g.calls() == 1);
  CHECK(test::error_of([] { (void)fake_world(4, 4); }) ==
        "world: rank must be below size 4, got 4");
  CHECK(test::error_of([] { (void)fake_world(0, 4, in_time(0)); }) ==
        "world: timeout_s must be above 0 and at most 1e8, got 0");
  CHECK(test::error_of([] { (void)fake_world(0, 4, in_time(1e10)); }) ==
        "world: timeout_s must be above 0 and at most 1e8, got 1e+10");
  for (const int recorded : {0, -1})
    CHECK(test::error_of([&] { (void)fake_world(0, 4, {.recorded = recorded}); }) ==
          message("flight recorder: capacity must be at least 1, got {}", recorded));
  WorldOptions options;
  options.link.latency_s = -1;
  CHECK(test::error_of([&] { (void)fake_world(0, 4, options); }) ==
        "world: the link's bytes_per_s and latency_s must be at least 0, got 0 and -1");
  CHECK(test::error_of([] { run_ranks(0, [](World&) {}); }) ==
        "run_ranks: ranks must be at least 1, got 0");
}

TEST_CASE("process_group errors: a collective for which nobody waits fails the job") {
  CHECK(
      test::error_of([] {
        run_ranks(2, [](World& w) {
          const Work dropped = w.all().all_reduce(Tensor::zeros({w.rank() == 0 ? 4 : 8}));
        });
      }).starts_with("all ranks of a group must give the same rows: rank 0 called all_reduce 0 "));
  CHECK(test::error_of([] {
          run_ranks(2, [](World& w) {
            if (w.rank() == 0) const Work dropped = w.all().all_reduce(Tensor::zeros({4}));
          });
        }) != "no error");
  // What one lane has thrown is known, also where other lanes have failed with it.
  run_ranks(2, [](World& w) {
    const auto data = w.group("data", {0, 1}, Lane::data);
    const Work dropped = data->all_reduce(Tensor::zeros({4}));
    CHECK(test::error_of([&] {
            w.all().all_reduce(Tensor::zeros({w.rank() == 0 ? 4 : 8})).wait();
          }) != "no error");
  });
}

TEST_CASE("process_group errors: at most 16 threads share a GPU") {
  const auto takes = [](int ranks) {
    const ThreadChannel channel("dp", std::vector<int>(static_cast<std::size_t>(ranks)), 0, {}, {});
    return channel.takes({Device::Kind::cuda, 0});
  };
  CHECK(takes(16));
  CHECK(test::error_of([&] { takes(17); }) ==
        "group dp: at most 16 threads can share a GPU, got 17 ranks");
}

TEST_CASE("process_group errors: a rank that unwinds waits until its tensors are no longer read") {
  // For AddressSanitizer and ThreadSanitizer: the failure happens at a different moment each time.
  for (int round = 0; round < 30; ++round) {
    const int culprit = round % 3;
    const std::string text = failure(3, [&](World& w) {
      std::vector<Work> works;
      for (int i = 0;; ++i) {
        const Tensor x = Tensor::ones({20000}), all = Tensor::empty({60000});
        works.push_back(w.all().all_gather(all, x));
        works.push_back(w.all().all_reduce(x));
        works.push_back(
            w.all().exchange(all, (w.rank() + 1) % 3, Tensor::ones({60000}), (w.rank() + 2) % 3));
        if (i % 3 == 2) works.back().wait();
        if (w.rank() == culprit && i == 2 + round / 3) throw Error("enough");
      }
    });
    CHECK(text == message("rank {}: enough", culprit));
  }
}

TEST_CASE("process_group errors: a failure dumps every rank's latest collectives") {
  const test::TempFolder folder;
  WorldOptions options = in_time(5);
  options.dump_folder = folder.path() + "/a/b";
  std::atomic<int> given_up{0};
  const auto skip_one = [&](World& w) {
    const auto dp = w.group("dp", {0, 1, 2});
    dp->all_reduce(Tensor::zeros({4})).wait();
    // Rank 1 skips one collective and computes for too long.
    if (w.rank() == 1)
      while (given_up < 2) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    try {
      if (w.rank() != 1) dp->all_reduce(Tensor::zeros({7})).wait();
    } catch (const Error&) {
      ++given_up;
      throw;
    }
    dp->barrier().wait();
  };
  const std::string text = failure(3, skip_one, options);
  CHECK(text == "all_reduce 1 of group dp, f32 [7]: rank 1 did not come within 5 s");
  for (int r = 0; r < 3; ++r) {
    const std::string dump = io::read_file(message("{}/rank_{}.txt", options.dump_folder, r));
    CAPTURE(dump);
    CHECK(dump.find(text + "\n0 all_reduce 0 of group dp sum f32 out 4 in 4 done called ") == 0);
    const bool shown =
        dump.find("\n1 all_reduce 1 of group dp sum f32 out 7 in 7 running called ") !=
        std::string::npos;
    CHECK(shown == (r != 1));
  }
  CHECK(io::list_directory(options.dump_folder).size() == 3);
  options.dump_folder = folder.path() + "/mistake";
  failure(
      2, [](World& w) { check(w.rank() == 0, "a user's mistake"); }, options);
  CHECK(!io::exists(options.dump_folder));
}

TEST_CASE("process_group errors: the trace of collectives is the same on all ranks") {
  test::distributed_test({2, 4}, [](World& w) {
    const int n = w.size();
    (void)w.group("first", {0});
    const Tensor x = Tensor::ones({w.rank() == 0 ? 3 : 1});
    Rows rows(static_cast<std::size_t>(n), 1);
    rows[0] = 3;
    const Tensor all = Tensor::empty({n + 2});
    w.all().all_gather(all, x, rows).wait();
    if (w.rank() == 0) w.all().send(x, 1).wait();
    if (w.rank() == 1) w.all().receive(Tensor::empty({3}), 0).wait();
    w.all().all_reduce(all, Reduce::max).wait();
    CHECK(collective_trace(w.recorder()) ==
          std::vector<std::string>{"all_gather 0 of group world f32",
                                   "all_reduce 1 of group world max f32"});
    test::check_same_traces(w);
  });
}

}  // namespace weft::distributed::process_group_errors_test
