// A model with three inputs, as docs/own_training.md shows.
#include <doctest/doctest.h>

#include "weft/io/metrics.h"
#include "weft/nn/embedding.h"
#include "weft/tests/silence.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"
#include "weft/tests/trainer_support.h"

namespace weft::train::trainer_inputs_test {
namespace {

using namespace trainer_test;

// An image (3), a text of 4 tokens and a mask that says which of these count.
struct ImageAndText : nn::Module {
  nn::Linear image{3, 8}, out{8, 4};
  nn::Embedding tokens{10, 8};
  Tensor operator()(const Tensor& pixels, const Tensor& ids, const Tensor& mask) const {
    const Tensor text = sum(tokens(ids) * mask.view({-1, 4, 1}), 1);
    return out(gelu(image(pixels) + text));
  }
  void visit(nn::Visitor& v) override { v("image", image), v("out", out), v("tokens", tokens); }
};

NamedTensors text_of_points() {
  const Tensor ids = Tensor::empty({kPoints, 4}, DType::i32), mask = Tensor::empty({kPoints, 4});
  for (std::int64_t i = 0; i < 4 * kPoints; ++i) {
    ids.data<std::int32_t>()[i] = static_cast<std::int32_t>(i / 4 % 4 + i % 4);
    mask.data<float>()[i] = i % 4 <= i / 4 % 4 ? 1 : 0;
  }
  return {{"text", ids}, {"mask", mask}};
}

}  // namespace

TEST_CASE(
    "trainer_inputs: a model with three inputs trains alike for any micro-batches and ranks") {
  const test::TempFolder folder;
  const test::Silence silence;
  const NamedTensors text = text_of_points();
  const Tensor &ids = text[0].tensor, &mask = text[1].tensor, images = points(),
               labels = ids.select(1, 0).clone();
  std::vector<io::Json> want;
  for (const std::int64_t ranks : {0, 2, 3})
    for (const std::int64_t micro : {0, 2}) {
      Options o = options_of(folder / message("{}{}", ranks, micro));
      o.parallel.ranks = ranks;
      o.micro_batch = micro;
      const int status = run_on_ranks(o, [&](const Ranks& r) {
        manual_seed(6);
        ImageAndText model;
        const data::TensorDataset training(images, labels, {{"text", ids}, {"mask", mask}});
        const auto loss = [&](const data::Batch& b) {
          return train::classify(model(b.inputs, b.at("text"), b.at("mask")), b.targets);
        };
        return Trainer(model, o, loss, r).fit(training, training);
      });
      REQUIRE(status == 0);
      const std::vector<io::Json> got = io::read_metrics(o.out + "/metrics.jsonl");
      if (want.empty()) want = got;
      REQUIRE(got.size() == want.size());
      for (std::size_t i = 0; i < got.size(); ++i)
        CHECK(number(got[i], "loss") == doctest::Approx(number(want[i], "loss")).epsilon(1e-4));
      CHECK(number(got.back(), "val_loss") ==
            doctest::Approx(number(want.back(), "val_loss")).epsilon(1e-4));
    }
  CHECK(number(want.back(), "loss") < number(want.front(), "loss"));
}

}  // namespace weft::train::trainer_inputs_test
