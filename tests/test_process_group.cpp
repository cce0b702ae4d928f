#include <doctest/doctest.h>

#include <vector>

#include "weft/core/parallel.h"
#include "weft/distributed/world.h"
#include "weft/tests/group_conformance.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"

namespace weft::distributed {
namespace {

std::vector<double> values(const Tensor& t) {
  std::vector<double> v(static_cast<std::size_t>(t.numel()));
  t.copy_to(v);
  return v;
}

}  // namespace

TEST_CASE("conformance") {
  test::distributed_test({1, 2, 3, 4, 8}, [](World& w) { test::check_groups(w); });
}

TEST_CASE("all_reduce adds what every rank has") {
  for (const int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [&](World& w) {
      const Tensor x = Tensor::full({5}, w.rank() + 1.0);
      w.all().all_reduce(x).wait();
      CHECK(values(x) == std::vector<double>(5, ranks * (ranks + 1) / 2.0));
    });
}

TEST_CASE("ring of exchanges") {
  run_ranks(4, [](World& w) {
    Tensor x = Tensor::full({2}, w.rank()), y = Tensor::empty({2});
    const int next = (w.rank() + 1) % 4, last = (w.rank() + 3) % 4;
    w.all().exchange(y, last, x, next).wait();
    CHECK(y.select(0, 0).item() == last);
  });
}

TEST_CASE("a rank that fails stops the others") {
  CHECK_THROWS_WITH_AS(run_ranks(3,
                                 [](World& w) {
                                   if (w.rank() == 1) throw Error("no more");
                                   w.all().barrier().wait();
                                 }),
                       "rank 1: no more", Error);
}

}  // namespace weft::distributed
