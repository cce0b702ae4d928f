// Batches with further tensors: more than one input for each row.
#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "weft/data/loader.h"
#include "weft/data/mixture.h"
#include "weft/tests/support.h"

namespace weft::batch_test {
namespace {

using namespace weft::data;
using test::error_of;
using test::values;

// Row i has the input i, the target -i, ids (10 i, 10 i + 1) and the weight i / 2.
constexpr std::int64_t kRows = 7;
NamedTensors more_of(std::int64_t rows = kRows) {
  const Tensor ids = Tensor::empty({rows, 2}, DType::i32), weight = Tensor::empty({rows});
  for (std::int64_t i = 0; i < rows; ++i) {
    ids.data<std::int32_t>()[2 * i] = static_cast<std::int32_t>(10 * i);
    ids.data<std::int32_t>()[2 * i + 1] = static_cast<std::int32_t>(10 * i + 1);
    weight.data<float>()[i] = static_cast<float>(i) / 2;
  }
  return {{"ids", ids}, {"weight", weight}};
}
TensorDataset dataset(const NamedTensors& more = more_of(), std::int64_t rows = kRows) {
  return {Tensor::arange(0, static_cast<double>(rows)),
          mul(Tensor::arange(0, static_cast<double>(rows)), -1), more};
}

// That every tensor has the row that the input names.
void check_rows(const Batch& b) {
  const std::vector<double> input = values(b.inputs), target = values(b.targets),
                            ids = values(b.at("ids")), weight = values(b.at("weight"));
  for (std::size_t i = 0; i < input.size(); ++i) {
    CHECK(target[i] == -input[i]);
    CHECK(ids[2 * i] == 10 * input[i]);
    CHECK(ids[2 * i + 1] == 10 * input[i] + 1);
    CHECK(weight[i] == input[i] / 2);
  }
}

struct Padded : TensorDataset {
  using TensorDataset::TensorDataset;
  bool allows_padding() const override { return true; }
};

}  // namespace

TEST_CASE("batch: further tensors go with their rows through loaders, parts and devices") {
  const TensorDataset data = dataset();
  Loader loader(data, {.batch = 6});
  for (int step = 0; step < 5; ++step) {
    const Batch all = loader.rows(), part = loader.rows(4, 2), narrow = all.narrow(4, 2);
    check_rows(all);
    check_rows(part);
    check_rows(narrow.to(kCpu));
    CHECK(narrow.at("ids").shape() == Shape{2, 2});
    CHECK(values(narrow.at("ids")) == values(part.at("ids")));
    loader.advance();
  }
  CHECK(data.rows(std::vector<std::int64_t>{1}).to(kMeta).at("weight").is_meta());
  const auto shared = std::make_shared<TensorDataset>(dataset());
  const Mixture mixed({{shared, 1}, {shared, 2}});
  check_rows(mixed.rows(std::vector<std::int64_t>{0, 1, 2, 3, 4}));
}

TEST_CASE("batch: evaluation pads further tensors with zeros") {
  const Padded data(Tensor::arange(0, kRows), Tensor::arange(0, kRows), more_of());
  const Batch last = EvalLoader(data, 4).batch(1);
  CHECK(last.rows() == 4);
  CHECK(values(last.at("ids")) == std::vector<double>{40, 41, 50, 51, 60, 61, 0, 0});
  CHECK(values(last.at("weight")) == std::vector<double>{2, 2.5, 3, 0});
}

TEST_CASE("batch: further tensors are a part of the contents of the data") {
  NamedTensors other = more_of(), renamed = more_of();
  other[1].tensor.data<float>()[3] = 9;
  renamed[1].name = "mask";
  CHECK(fingerprint(dataset()) == fingerprint(dataset(more_of())));
  CHECK(fingerprint(dataset()) != fingerprint(dataset(other)));
  CHECK(fingerprint(dataset()) != fingerprint(dataset(renamed)));
  CHECK(fingerprint(dataset()) != fingerprint(dataset({})));
}

TEST_CASE("batch: wrong names and shapes are refused") {
  CHECK(error_of([] { dataset().rows(std::vector<std::int64_t>{0}).at("mask"); }) ==
        "batch: more must have a tensor 'mask', got ids, weight");
  CHECK(error_of([] { Batch().at("mask"); }) == "batch: more must have a tensor 'mask', got none");
  CHECK(error_of([] { dataset(more_of(3)); }) ==
        "tensor dataset: 'ids' must have 7 rows as inputs, got shape [3, 2]");
  CHECK(error_of([] {
          dataset({{"x", Tensor::full({}, 1)}});
        }) == "tensor dataset: 'x' must have 7 rows as inputs, got shape []");
  CHECK(error_of([] { dataset({{"x", Tensor()}}); }) == "tensor dataset: 'x' must be on the CPU");
  const Tensor t = Tensor::ones({kRows});
  CHECK(error_of([&] {
          dataset({{"x", t}, {"x", t}});
        }) == "tensor dataset: the names of more must be different, got 'x' twice");
  CHECK(error_of([&] {
          dataset({{"", t}});
        }) == "tensor dataset: the names of more must not be empty");
  const auto with = std::make_shared<TensorDataset>(dataset()),
             without = std::make_shared<TensorDataset>(dataset({}));
  CHECK(error_of([&] {
          Mixture({{with, 1}, {without, 1}}).rows(std::vector<std::int64_t>{0, 1, 2});
        }) == "mixture: more of all datasets must have the same names in the same order");
}

}  // namespace weft::batch_test
