#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/indexing.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::indexing_test {
namespace {

using test::different_bits;
using test::disagreement;
using test::error_of;
using test::for_each_order;
using test::kEveryDType;
using test::kGpu;
using test::random;
using test::strided;

// Indices in [0, limit) that depend only on the seed, with repeats.
Tensor random_ids(const Shape& shape, std::int64_t limit, std::uint64_t seed = 3,
                  DType dtype = DType::i64) {
  return test::random_in(shape, 0, static_cast<double>(limit), seed, dtype);
}

}  // namespace

TEST_CASE("indexing: index_select and gather for every dtype, axis and index type") {
  for (const DType t : kEveryDType) {
    CAPTURE(std::string(name(t)));
    const Tensor x = random({3, 5, 16}, 1).to(t), g = x.to(kGpu);
    for (const DType kind : {DType::i32, DType::i64})
      for (int dim = 0; dim < 3; ++dim) {
        const Tensor line = random_ids({7}, x.dim(dim), 4, kind);
        Shape beside = x.shape();
        beside[dim] = 4;
        const Tensor index = random_ids(beside, x.dim(dim), 5, kind);
        CHECK(different_bits(index_select(g, dim, line.to(kGpu)).to(kCpu),
                             index_select(x, dim, line)) == "");
        CHECK(different_bits(gather(g, dim, index.to(kGpu)).to(kCpu), gather(x, dim, index)) == "");
      }
    const Tensor none = Tensor::empty({0}, DType::i64, kGpu);
    CHECK(index_select(g, 1, none).shape() == Shape{3, 0, 16});
  }
}

TEST_CASE("indexing: gradients of index_select and gather equal the CPU's") {
  for (const Shape& s : {Shape{6, 5}, Shape{3, 4, 8}, Shape{2, 3, 37}, Shape{1, 1}, Shape{9}})
    for (int dim = 0; dim < s.size(); ++dim) {
      CAPTURE(to_string(s));
      CAPTURE(dim);
      const Tensor x = random(s), line = random_ids({11}, s[dim]);
      Shape beside = s;
      beside[dim] = 5;
      const Tensor index = random_ids(beside, s[dim]);
      const auto select = [dim](const TensorList& in) {
        return TensorList{index_select(in[0], dim, in[1])};
      };
      const auto pick = [dim](const TensorList& in) {
        return TensorList{gather(in[0], dim, in[1])};
      };
      CHECK(disagreement(select, {x, line}) == "");
      CHECK(disagreement(select, {strided(x), line.to(DType::i32)}) == "");
      CHECK(disagreement(pick, {x, index}) == "");
    }
  const auto none = [](const TensorList& in) { return TensorList{index_select(in[0], 0, in[1])}; };
  CHECK(disagreement(none, {random({4, 3}), Tensor::empty({0}, DType::i32)}) == "");
}

TEST_CASE("indexing: scatter_add along rows and columns") {
  const auto add = [](int dim) {
    return
        [dim](const TensorList& in) { return TensorList{scatter_add(in[0], dim, in[1], in[2])}; };
  };
  CHECK(disagreement(add(1), {random({3, 4, 5}), random_ids({3, 9, 5}, 4), random({3, 9, 5}, 2)}) ==
        "");
  CHECK(disagreement(add(0), {random({6, 5}), random_ids({9, 5}, 6), random({9, 5}, 2)}) == "");
  CHECK(disagreement(add(1), {random({3, 7}), random_ids({3, 70}, 7), random({3, 70}, 2)}) == "");
  CHECK(disagreement(add(1), {strided(random({3, 7})), random_ids({3, 0}, 7), random({3, 0}, 2)}) ==
        "");
  // The terms are added in the CPU's order, so the bits are equal.
  for (const DType t : {DType::f32, DType::f64, DType::i32, DType::i64, DType::u8})
    for (const Shape& s : {Shape{1, 300}, Shape{90, 3}}) {
      const Tensor index = random_ids(s, 5), source = random(s, 2, t);
      const Tensor x = Tensor::zeros({s[0], 5}, t), across = Tensor::zeros({5, s[1]}, t);
      for_each_order([&] {
        CHECK(different_bits(scatter_add(x.to(kGpu), 1, index.to(kGpu), source.to(kGpu)).to(kCpu),
                             scatter_add(x, 1, index, source)) == "");
        CHECK(different_bits(
                  scatter_add(across.to(kGpu), 0, index.to(kGpu), source.to(kGpu)).to(kCpu),
                  scatter_add(across, 0, index, source)) == "");
      });
    }
}

TEST_CASE("indexing: scatter and index_add have the CPU's bits, with equal indices too") {
  for (const DType t : kEveryDType) {
    CAPTURE(std::string(name(t)));
    for (const Shape& s : {Shape{1, 300}, Shape{90, 3}, Shape{2, 0}}) {
      const Tensor index = random_ids(s, 5), source = random(s, 2, DType::f32).to(t);
      const Tensor x = Tensor::zeros({s[0], 5}, t), across = Tensor::zeros({5, s[1]}, t);
      for_each_order([&] {
        CHECK(different_bits(scatter(x.to(kGpu), 1, index.to(kGpu), source.to(kGpu)).to(kCpu),
                             scatter(x, 1, index, source)) == "");
        CHECK(different_bits(scatter(across.to(kGpu), 0, index.to(kGpu), source.to(kGpu)).to(kCpu),
                             scatter(across, 0, index, source)) == "");
      });
    }
  }
  const auto write = [](const TensorList& in) {
    return TensorList{scatter(in[0], 1, in[1], in[2])};
  };
  const auto add = [](const TensorList& in) {
    return TensorList{index_add(in[0], 1, in[1], in[2])};
  };
  CHECK(disagreement(write, {random({3, 4, 5}), random_ids({3, 9, 5}, 4), random({3, 9, 5}, 2)}) ==
        "");
  CHECK(disagreement(write, {random({3, 7}), random_ids({3, 70}, 7), random({3, 70}, 2)}) == "");
  CHECK(disagreement(add, {random({3, 4, 5}), random_ids({9}, 4), random({3, 9, 5}, 2)}) == "");
  CHECK(disagreement(add, {random({3, 7}), random_ids({70}, 7), random({3, 70}, 2)}) == "");
}

TEST_CASE("indexing: the gradient of an embedding has the CPU's bits") {
  // More than a tile, runs longer than a warp's loads, one to three digits.
  for (const auto& [rows, width] :
       {std::pair<int, int>{3, 5}, {256, 8}, {300, 3}, {70'000, 4}, {2, 200}}) {
    CAPTURE(rows);
    CAPTURE(width);
    const Tensor ids = cat({random_ids({2100}, rows), Tensor::full({50}, rows - 1, DType::i64)});
    const Tensor dy = random({2150, width}, 5, DType::f32);
    const auto gradient = [&](Device device) {
      Tensor w = Tensor::zeros({rows, width}, DType::f32, device);
      w.set_requires_grad();
      Tape tape;
      embedding(w, ids.to(device)).backward(dy.to(device));
      return w.grad().to(kCpu);
    };
    CHECK(different_bits(gradient(kGpu), gradient(kCpu)) == "");
  }
  const auto embed = [](const TensorList& in) { return TensorList{embedding(in[0], in[1])}; };
  CHECK(disagreement(embed, {random({7, 3}), random_ids({2, 5}, 7, 3, DType::i32)}) == "");
  CHECK(disagreement(embed, {random({1, 16}), random_ids({70}, 1)}) == "");
  CHECK(disagreement(embed, {random({5, 2}), Tensor::empty({0, 4}, DType::i64)}) == "");
}

TEST_CASE("indexing: a bf16 embedding adds in f32 to a tied head's gradient") {
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    Tensor w = Tensor::zeros({2, 8}, t, kGpu);
    w.set_requires_grad();
    for (int pass = 0; pass < 2; ++pass) {
      Tape tape;
      embedding(w, Tensor::zeros({256}, DType::i32, kGpu))
          .backward(Tensor::ones({256, 8}, t, kGpu));
    }
    CHECK(w.grad().dtype() == t);
    CHECK(w.grad().select(0, 0).select(0, 7).item() == 512);
    CHECK(w.grad().select(0, 1).select(0, 0).item() == 0);
  }
}

TEST_CASE(
    "indexing: the gradient of an embedding of 16 bits reaches an f32 main_grad with the CPU's "
    "bits") {
  for (const DType t : {DType::bf16, DType::f16})
    for (const std::int64_t width : {5, 8}) {
      CAPTURE(t);
      CAPTURE(width);
      const Tensor ids = random_ids({70}, 9), dy = random({70, width}, 5, t);
      const auto sum = [&](Device device) {
        Tensor w = Tensor::zeros({9, width}, t, device);
        w.set_requires_grad();
        w.set_main_grad(Tensor::zeros({9, width}, DType::f32, device));
        for (int pass = 0; pass < 2; ++pass) {
          Tape tape;
          embedding(w, ids.to(device)).backward(dy.to(device));
        }
        return w.main_grad().to(kCpu);
      };
      CHECK(different_bits(sum(kGpu), sum(kCpu)) == "");
    }
}

TEST_CASE("indexing: one_hot and tril") {
  const Tensor ids = random_ids({3, 7}, 5);
  for (const DType t : kEveryDType) {
    CAPTURE(std::string(name(t)));
    for (const DType kind : {DType::i32, DType::i64})
      CHECK(different_bits(one_hot(ids.to(kind).to(kGpu), 5, t).to(kCpu), one_hot(ids, 5, t)) ==
            "");
    const Tensor x = random({2, 5, 7}, 1).to(t);
    for (const std::int64_t diagonal :
         {std::int64_t{0}, std::int64_t{2}, std::int64_t{-1}, std::int64_t{-9}, std::int64_t{9},
          INT64_MAX, INT64_MAX - 1, INT64_MIN})
      CHECK(different_bits(tril(x.to(kGpu), diagonal).to(kCpu), tril(x, diagonal)) == "");
  }
  CHECK(tril(Tensor::empty({2, 0, 3}, DType::f32, kGpu)).shape() == Shape{2, 0, 3});
  const auto lower = [](const TensorList& in) { return TensorList{tril(in[0], 1)}; };
  CHECK(disagreement(lower, {strided(random({3, 37, 21}))}) == "");
}

TEST_CASE("indexing: the next wait throws the CPU's Error for a bad index and nothing is written") {
  const Tensor w = random({4, 3}, 1, DType::f32), g = w.to(kGpu);
  for (const double bad : {4.0, -1.0, 1e9}) {
    const Tensor ids = Tensor::of({1, bad, 2}, {3}, DType::i64), on_gpu = ids.to(kGpu);
    const Tensor index = Tensor::of({bad, 0, 1}, {1, 3}, DType::i64), beside = index.to(kGpu);
    const auto same = [](const auto& wrong, const auto& on_cpu) {
      wrong();
      CHECK(error_of([] { cuda::synchronize(); }) == error_of(on_cpu));
      cuda::synchronize();  // reported once
    };
    for_each_order([&] {
      same([&] { embedding(g, on_gpu); }, [&] { embedding(w, ids); });
      same([&] { index_select(g, 0, on_gpu); }, [&] { index_select(w, 0, ids); });
      same([&] { gather(g, 0, beside); }, [&] { gather(w, 0, index); });
      same([&] { scatter_add(g, 0, beside, g.narrow(0, 0, 1)); },
           [&] { scatter_add(w, 0, index, w.narrow(0, 0, 1)); });
      same([&] { scatter_add(g.select(1, 0), 0, on_gpu, g.select(0, 0)); },
           [&] { scatter_add(w.select(1, 0), 0, ids, w.select(0, 0)); });
      same([&] { one_hot(on_gpu, 4); }, [&] { one_hot(ids, 4); });
      // The backward skips the bad index too.
      Tensor leaf = g.clone();
      leaf.set_requires_grad();
      {
        Tape tape;
        embedding(leaf, on_gpu).backward(Tensor::ones({3, 3}, DType::f32, kGpu));
      }
      CHECK(error_of([] { cuda::synchronize(); }) == error_of([&] { embedding(w, ids); }));
      CHECK(different_bits(leaf.grad().to(kCpu),
                           Tensor::of({0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0}, {4, 3})) == "");
    });
    CHECK(different_bits(g.to(kCpu), w) == "");
  }
}

TEST_CASE("indexing: the host never waits in an embedding's forward and backward") {
  Tensor w = random({40, 16}, 1, DType::f32).to(kGpu);
  w.set_requires_grad();
  const Tensor ids = random_ids({5, 9}, 40).to(kGpu);
  const Tensor dy = random({5, 9, 16}, 2, DType::f32).to(kGpu);
  const std::int64_t before = cuda::host_syncs();
  {
    Tape tape;
    embedding(w, ids).backward(dy);
  }
  gather(w.detach(), 0, ids.view({45, 1}).narrow(0, 0, 16).view({1, 16}));
  CHECK(cuda::host_syncs() == before);
}

}  // namespace weft::indexing_test
