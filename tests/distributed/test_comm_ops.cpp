#include <doctest/doctest.h>

#include <functional>

#include "weft/autograd/elementwise.h"
#include "weft/distributed/comm_ops.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"

namespace weft::distributed::comm_ops_test {
namespace {

// Values differ by rank but have the same magnitude.
Tensor weights(const Shape& shape, int rank, DType dtype = DType::f64) {
  return test::random(shape, 100 + static_cast<std::uint64_t>(rank), dtype);
}

Tensor part(const Tensor& x, int rank, int ranks) {
  return narrow(x, 0, rank * x.dim(0) / ranks, x.dim(0) / ranks);
}

using Program = std::function<Tensor(const Tensor& x)>;

// Every rank has the same x and computes the same y, so perturbing x on all ranks at once must give
// the gradient that each rank's tape computes.
std::string check_gradient(const Program& f, const Tensor& x) {
  return gradcheck([&](const TensorList& in) { return f(in[0]); }, {x}, {.second_order = true});
}

}  // namespace

TEST_CASE("comm_ops: values on one, two and more ranks") {
  test::distributed_test({1, 2, 4}, [](World& w) {
    const int ranks = w.size();
    ProcessGroup& g = w.all();
    const int r = w.rank();
    const Tensor whole = test::random({4 * ranks, 3}, 3);
    const Tensor own = part(whole, r, ranks);
    CHECK(test::different_bits(gather_rows(own, g), whole) == "");
    CHECK(test::different_bits(gather_rows_replicated(test::strided(own), g), whole) == "");
    CHECK(test::different_bits(scatter_rows(whole, g), own.contiguous()) == "");
    CHECK(test::different_bits(copy_to_group(whole, g), whole) == "");

    Tensor total = zeros_like(whole);
    for (int i = 0; i < ranks; ++i) total = add(total, mul(whole, i + 1.0));
    const Tensor mine = mul(whole, r + 1.0);
    CHECK(test::different_bits(reduce_from_group(mine, g), total) == "");
    CHECK(test::different_bits(reduce_from_group(test::strided(mine), g), total) == "");
    CHECK(test::different_bits(mine, mul(whole, r + 1.0)) == "");  // another handle exists
    CHECK(test::different_bits(reduce_scatter_rows(mine, g), part(total, r, ranks)) == "");

    // Leading axes before the rows.
    const Tensor three = whole.view({2 * ranks, 2, 3});
    const Shape cut = ranks > 1 ? Shape{1, 4, 3} : three.shape();
    CHECK(scatter_rows(three, g).shape() == cut);
    CHECK(reduce_scatter_rows(three, g).shape() == cut);
    CHECK(test::different_bits(scatter_rows(three, g).view({4, 3}), own.contiguous()) == "");
    const Shape all = ranks > 1 ? Shape{1, 4 * ranks, 3} : Shape{1, 4, 3};
    CHECK(gather_rows(own.reshape({1, 4, 3}), g).shape() == all);

    // Zero rows.
    const Tensor none = Tensor::empty({0, 3}, DType::f64);
    for (const auto op : {gather_rows, gather_rows_replicated, scatter_rows, reduce_scatter_rows})
      CHECK(op(none, g).shape() == Shape{0, 3});
    const Tensor meta = Tensor::empty({4, 3}, DType::bf16, kMeta);
    CHECK(gather_rows(meta, g).shape() == Shape{4 * ranks, 3});
    CHECK(scatter_rows(meta, g).shape() == Shape{4 / ranks, 3});
    CHECK(reduce_from_group(meta, g).dtype() == DType::bf16);
  });
}

TEST_CASE("comm_ops: rows to columns and back changes no bit") {
  test::distributed_test({1, 2, 4, 8}, [](World& w) {
    ProcessGroup& g = w.all();
    const std::int64_t width = 3;
    const Tensor own = weights({4, width * w.size()}, w.rank(), DType::f32);
    const Tensor whole = gather_rows_replicated(own, g);
    const Tensor columns = narrow(whole, 1, width * w.rank(), width);
    const Rows widths(static_cast<std::size_t>(w.size()), width);
    const Tensor again = gather_columns(columns, g, widths);
    CHECK(test::different_bits(again, whole) == "");
    CHECK(test::different_bits(scatter_rows(again, g), own) == "");
  });
}

TEST_CASE("comm_ops: an x that is moved in is summed in place") {
  test::distributed_test(2, [](World& w) {
    Tensor x = Tensor::full({3}, w.rank() + 1.0);
    const void* const memory = x.raw();
    const Tensor y = reduce_from_group(std::move(x), w.all());
    CHECK(y.raw() == memory);
    CHECK(test::different_bits(y, Tensor::full({3}, 3.0)) == "");
  });
}

TEST_CASE("comm_ops: gather_columns accepts unequal widths") {
  test::distributed_test(4, [](World& w) {
    const Rows columns{2, 3, 0, 1};
    const Tensor whole = test::random({2, 5, 6}, 4);
    std::int64_t first = 0;
    for (int r = 0; r < w.rank(); ++r) first += columns[static_cast<std::size_t>(r)];
    const Tensor own = narrow(whole, 2, first, columns[static_cast<std::size_t>(w.rank())]);
    CHECK(test::different_bits(gather_columns(own, w.all(), columns), whole) == "");
  });
}

TEST_CASE("comm_ops: each backward is the dual of its forward") {
  test::distributed_test({1, 2, 4}, [](World& w) {
    const int ranks = w.size();
    ProcessGroup& g = w.all();
    const int r = w.rank();
    const Tensor x = test::random({4, 3}, 5), a = weights({4, 3}, r);
    const Tensor own = part(test::random({4, 3}, 6), r, ranks);
    const auto nonlinear = [](const Tensor& t) { return mul(t, t); };
    CHECK(check_gradient(
              [&](const Tensor& t) {
                return nonlinear(reduce_from_group(mul(nonlinear(copy_to_group(t, g)), a), g));
              },
              x) == "");
    CHECK(check_gradient(
              [&](const Tensor& t) {
                const Tensor mine = mul(nonlinear(scatter_rows(t, g)), own);
                return nonlinear(gather_rows_replicated(mine, g));
              },
              x) == "");
    CHECK(check_gradient(
              [&](const Tensor& t) {
                const Tensor all = gather_rows(nonlinear(scatter_rows(t, g)), g);
                return nonlinear(reduce_from_group(mul(all, a), g));
              },
              x) == "");
    CHECK(check_gradient(
              [&](const Tensor& t) {
                const Tensor mine = mul(nonlinear(copy_to_group(t, g)), a);
                return nonlinear(
                    gather_rows_replicated(nonlinear(reduce_scatter_rows(mine, g)), g));
              },
              x) == "");
    if (ranks == 4) return;
    const Rows columns = ranks == 1 ? Rows{3} : Rows{1, 2};
    CHECK(check_gradient(
              [&](const Tensor& t) {
                const std::int64_t n = columns[static_cast<std::size_t>(r)];
                const Tensor mine = narrow(copy_to_group(t, g), 1, r, n);
                return nonlinear(gather_columns(nonlinear(mine), g, columns));
              },
              x) == "");
  });
}

TEST_CASE("comm_ops: f32 and bf16 are summed in f32 and rounded once") {
  test::distributed_test(4, [](World& w) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      Tensor total = Tensor::zeros({8, 3});
      for (int r = 0; r < 4; ++r) total = add(total, weights({8, 3}, r, dtype).to(DType::f32));
      const Tensor mine = weights({8, 3}, w.rank(), dtype);
      CHECK(test::different_bits(reduce_from_group(mine, w.all()), total.to(dtype)) == "");
      CHECK(test::different_bits(reduce_scatter_rows(mine, w.all()),
                                 part(total.to(dtype), w.rank(), 4)) == "");
    }
  });
}

TEST_CASE("comm_ops: errors name the rule") {
  test::distributed_test(2, [](World& w) {
    ProcessGroup& g = w.all();
    const auto error = [&](auto&& f) { return test::error_of(f); };
    CHECK(error([&] {
            scatter_rows(Tensor::zeros({1, 3, 2}), g);
          }) == "scatter_rows: the 3 rows of x [1, 3, 2] do not divide among 2 ranks");
    CHECK(error([&] {
            reduce_scatter_rows(Tensor::zeros({5, 2}), g);
          }) == "reduce_scatter_rows: the 5 rows of x [5, 2] do not divide among 2 ranks");
    CHECK(error([&] { gather_rows(Tensor::zeros({5}), g); }) ==
          "gather_rows: x must have at least 2 axes, got shape [5]");
    CHECK(error([&] { copy_to_group(Tensor::zeros({5}, DType::i32), g); }) ==
          "copy_to_group: x must have dtype f32, f64, bf16 or f16, got i32");
    CHECK(error([&] { reduce_from_group(Tensor(), g); }) ==
          "reduce_from_group: x must be a tensor, got a null handle");
    CHECK(error([&] {
            gather_columns(Tensor::zeros({2, 3}), g, {3});
          }) == "gather_columns: columns must have one number for each of 2 ranks, got 1");
    CHECK(error([&] {
            gather_columns(Tensor::zeros({2, 3}), g, {2, 2});
          }) ==
          message("gather_columns: x must have 2 columns on rank {}, got shape [2, 3]", w.rank()));
  });
}

}  // namespace weft::distributed::comm_ops_test
