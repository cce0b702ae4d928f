#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "weft/autograd/dropout.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/matmul.h"
#include "weft/core/parallel.h"
#include "weft/distributed/world.h"
#include "weft/tests/count_new.h"
#include "weft/tests/group_conformance.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"

namespace weft::distributed::process_group_test {
namespace {

constexpr int kRows = 48, kWidth = 64;

/// Three steps of gradient descent on sum((dropout(tanh(x w)) - 1)^2) over these rows of the batch.
/// `reduce` sums the gradient over all rows.
template <class F>
Tensor train(std::int64_t first, std::int64_t rows, F reduce) {
  Tensor w = test::random({kWidth, kWidth}, 7);
  for (std::uint64_t step = 0; step < 3; ++step) {
    w.set_requires_grad();
    {
      Tape tape;
      const Tensor x = test::random({kRows, kWidth}, 8 + step).narrow(0, first, rows);
      const RandomKey key{1, step, static_cast<std::uint64_t>(first * kWidth)};
      const Tensor y = dropout(matmul(x, w).tanh(), 0.3, key);
      square(sub(y, 1.0)).sum().backward();
    }
    const Tensor gradient = w.grad();
    reduce(gradient);
    w = Tensor(w.detach().clone().add_(gradient, -1e-3));
  }
  return w;
}

}  // namespace

TEST_CASE("conformance") {
  test::distributed_test({1, 2, 3, 4, 8}, [](World& w) { test::check_groups(w); });
}

TEST_CASE("ranks: training side by side with separate tapes equals one rank") {
  const test::RestoreThreads threads(4);
  const Tensor want = train(0, kRows, [](const Tensor&) {});
  test::distributed_test({1, 2, 3, 4}, [&](World& w) {
    const std::int64_t rows = kRows / w.size();
    const Tensor got = train(w.rank() * rows, rows,
                             [&](const Tensor& gradient) { w.all().all_reduce(gradient).wait(); });
    CHECK(test::mismatch(got, want, 1e-12) == "");
    Tensor first = got.clone();
    w.all().broadcast(first, 0).wait();
    CHECK(test::different_bits(got, first) == "");
  });
}

TEST_CASE("ranks: all start with the same random state") {
  Tensor drawn[3];
  (void)rand_normal({4});
  run_ranks(3, [&](World& w) { drawn[w.rank()] = rand_normal({4}); });
  CHECK(test::different_bits(drawn[0], drawn[1]) == "");
  CHECK(test::different_bits(drawn[0], drawn[2]) == "");
}

TEST_CASE("ranks: share the machine's threads") {
  const test::RestoreThreads threads(7);
  run_ranks(3, [](World&) { CHECK(num_threads() == 2); });
  run_ranks(8, [](World&) { CHECK(num_threads() == 1); });
}

TEST_CASE("process_group: a collective runs while its caller computes") {
  test::distributed_test(2, [](World& w) {
    const Tensor x = Tensor::full({1000}, w.rank() + 1);
    const double before = w.stats().waiting_s;
    const Work work = w.all().all_reduce(x);
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!work.done() && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
    CHECK(work.done());
    CHECK(x.select(0, 999).item() == 3);
    CHECK(w.stats().waiting_s == before);
  });
}

TEST_CASE("process_group: at_once() runs a collective in wait()") {
  test::distributed_test({1, 2, 3}, [](World& w) {
    const double sum = w.size() * (w.size() + 1) / 2;
    const Tensor x = Tensor::full({4}, w.rank() + 1), y = Tensor::full({4}, w.rank() + 1);
    for (int i = 0; i < 50; ++i) {
      w.all().at_once().all_reduce(x.fill_(w.rank() + 1)).wait();
      CHECK(x.select(0, 3).item() == sum);
    }
    // No rank waits for the first one; the next one completes it.
    const Work first = w.all().at_once().all_reduce(y);
    w.all().all_reduce(x).wait();
    CHECK(first.done());
    CHECK(y.select(0, 3).item() == sum);
    // No rank waits for this one either: it completes when the world ends.
    (void)w.all().at_once().all_reduce(y);
  });
}

TEST_CASE("process_group: a batch receives its messages in any order") {
  run_ranks(3, [](World& w) {
    const Tensor one = Tensor::full({4}, w.rank()), other = Tensor::zeros({4});
    ProcessGroup& g = w.all();
    if (w.rank() == 0) {
      const Tensor from1 = Tensor::zeros({4}), from2 = Tensor::zeros({4}), second = from2.clone();
      g.batch({}, {{from1, 1}, {from2, 2}, {second, 2}}).wait();
      CHECK(from1.select(0, 3).item() == 1);
      CHECK(from2.select(0, 3).item() == 2);
      CHECK(second.select(0, 3).item() == 5);
    } else if (w.rank() == 1) {  // it waits for rank 2, which waits until rank 0 has its messages
      g.receive(other, 2).wait();
      g.send(one, 0).wait();
    } else {
      g.send(one, 0).wait();
      g.send(Tensor::full({4}, 5), 0).wait();
      g.send(one, 1).wait();
    }
  });
}

TEST_CASE("process_group: a slow link delays wait() and the delay is counted") {
  WorldOptions options;
  options.link = {1e6, 0.01};
  run_ranks(
      2,
      [](World& w) {
        const Tensor x = Tensor::zeros({5000});
        // A caller that is descheduled before wait() waits for less time: try again.
        double longest = 0;
        const Tensor least = Tensor::zeros({1}, DType::f64);
        for (int i = 0; i < 20 && least.item() < 0.03; ++i) {
          const CommStats before = w.stats();
          const auto begin = std::chrono::steady_clock::now();
          w.all().all_reduce(x).wait();
          const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
          const CommStats after = w.stats();
          // 20000 bytes: half of the tensor to the other rank, then the sum of its own half.
          CHECK(after.bytes_sent - before.bytes_sent == 20000);
          CHECK(took.count() >= 0.03);
          CHECK(after.busy_s - before.busy_s >= 0.03);
          CHECK(after.calls - before.calls == 1);
          const double waited = after.waiting_s - before.waiting_s;
          CHECK(waited <= took.count());
          longest = std::max(longest, waited);
          w.all().all_reduce(least.fill_(longest), Reduce::min).wait();
        }
        CHECK(least.item() >= 0.03);
      },
      options);
}

TEST_CASE("process_group: a warm collective allocates nothing") {
  long before = 0, after = 0;
  run_ranks(3, [&](World& w) {
    const auto ring = w.group("ring", {2, 0, 1});
    const Tensor x = Tensor::ones({3000}), part = Tensor::empty({1000}), y = Tensor::empty({3000});
    const Rows rows{1000, 1500, 500};
    const Tensor mine = x.narrow(0, 0, rows[static_cast<std::size_t>(w.rank())]);
    const int next = (ring->rank() + 1) % 3, last = (ring->rank() + 2) % 3;
    const auto step = [&] {
      Work first = w.all().all_reduce(x, Reduce::max);
      Work second = w.all().reduce_scatter(part, x);
      (void)w.all().all_gather(y, mine, rows);
      ring->exchange(y, last, x, next).wait();
      first.wait();
      second.wait();
      w.all().all_to_all(y, x).wait();
    };
    for (int i = 0; i < 5; ++i) step();
    w.all().barrier().wait();
    if (w.rank() == 0) before = test::news;
    w.all().barrier().wait();
    for (int i = 0; i < 20; ++i) step();
    w.all().barrier().wait();
    if (w.rank() == 0) after = test::news;
  });
  CHECK(after == before);
}

TEST_CASE("process_group: a fake rank counts the bytes that a real one sends") {
  const auto use = [](World& w) {
    const int n = w.size(), me = w.rank();
    Rows rows, to;
    for (int r = 0; r < n; ++r) {
      rows.push_back(r + 1);
      to.push_back((me + r) % 3);
    }
    const auto total = [](const Rows& list) {
      std::int64_t sum = 0;
      for (const std::int64_t r : list) sum += r;
      return sum;
    };
    const Device device = w.backend() == std::string("fake") ? kMeta : kCpu;
    const auto make = [&](std::int64_t first, DType t = DType::f32) {
      return Tensor::zeros({first, 3}, t, device);
    };
    ProcessGroup& g = w.all();
    const auto half = w.group("half", {0, n - 1});
    g.all_reduce(make(1000)).wait();
    g.all_reduce(make(1, DType::bf16)).wait();
    g.all_gather(make(total(rows)), make(me + 1), rows).wait();
    g.reduce_scatter(make(me + 1), make(total(rows)), rows).wait();
    g.all_to_all(make(total(to)), make(total(to)), to, to).wait();
    g.broadcast(make(5, DType::i64), 2).wait();
    g.exchange(make(2), (me + 1) % n, make(2), (me + n - 1) % n).wait();
    if (half) half->all_reduce(make(64)).wait();
    g.barrier().wait();
  };
  CommStats real[4];
  run_ranks(4, [&](World& w) {
    use(w);
    real[w.rank()] = w.stats();
  });
  for (int rank = 0; rank < 4; ++rank) {
    const auto world = fake_world(rank, 4);
    CHECK(world->backend() == std::string("fake"));
    use(*world);
    CHECK(world->stats().bytes_sent == real[rank].bytes_sent);
    CHECK(world->stats().calls == real[rank].calls);
  }
}

}  // namespace weft::distributed::process_group_test
