// A Trainer in a program of its own, and the errors of wrong use.
#include <doctest/doctest.h>

#include "weft/io/metrics.h"
#include "weft/tests/silence.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"
#include "weft/tests/trainer_support.h"

namespace weft::train::trainer_use_test {

using namespace trainer_test;
using test::error_of;

TEST_CASE("trainer_use: works without a command line") {
  const test::TempFolder folder;
  const test::Silence silence;
  const std::string out = folder / "out";
  const data::TensorDataset training = labelled(), validation = labelled();
  TwoLayers model;
  const auto loss = [&](const data::Batch& b) { return classify(model(b.inputs), b.targets); };
  {
    train::Trainer trainer(model, {.out = out, .steps = 100, .batch = 20}, loss);
    trainer.fit(training, validation);
  }
  const std::vector<io::Json> rows = io::read_metrics(out + "/metrics.jsonl");
  CHECK(rows.size() == 100);
  CHECK(number(rows.back(), "loss") < number(rows.front(), "loss"));
}

TEST_CASE("trainer_use: invalid use gives a one-line error") {
  const test::TempFolder folder;
  const test::Silence silence;
  const data::TensorDataset data = labelled();
  int made = 0;
  const auto refusal = [&](Options o, const LossFunction& loss = {}) {
    o.out = folder / std::to_string(made++);
    return error_of([&] {
      TwoLayers model;
      Trainer trainer(
          model, o, loss ? loss : [&](const data::Batch& b) { return loss_of(model, b); });
      trainer.fit(data);
    });
  };
  Options o = options_of("");
  CHECK(refusal(o) == "no error");
  CHECK(refusal(o, [](const data::Batch&) { return Loss{}; }) ==
        "loss: sum must have 1 element, got null");
  CHECK(refusal(o, [](const data::Batch& b) { return Loss{.sum = b.inputs}; }) ==
        "loss: sum must have 1 element, got shape [12, 3]");
  Options changed = o;
  changed.steps = 0;
  CHECK(refusal(changed) == "--steps: must be at least 1, got 0");
  changed = o;
  changed.micro_batch = 5;
  CHECK(refusal(changed) == "--micro-batch: must divide --batch 12, got 5");
  changed = o;
  changed.parallel.tp = 2;
  CHECK(refusal(changed).starts_with("--ranks: one rank cannot share work among"));

  changed = o;
  changed.parallel.ranks = 2;
  CHECK(refusal(changed) == "--ranks: must be at most 1 for a run alone, got 2");

  {
    TwoLayers model;
    changed = o;
    changed.out = folder / "names";
    Trainer trainer(model, changed, [&](const data::Batch& b) {
      Loss loss = classify(model(b.inputs), b.targets);
      loss.metrics[0].name = "lr";
      return loss;
    });
    CHECK(error_of([&] { trainer.fit(data); }) == "metrics: two numbers are called 'lr'");
    CHECK(error_of([&] { trainer.fit(data); }) == "fit: may be called once; a Trainer is one run");
  }

  // Metrics that change between micro-batches, and a batch of another size.
  const Ranks alone = Ranks::alone(o);
  Options halves = o;
  halves.micro_batch = 6;
  TwoLayers model;
  int calls = 0;
  TrainStep step({.model = model,
                  .loss =
                      [&](const data::Batch& b) {
                        Loss loss = loss_of(model, b);
                        if (++calls == 2) loss.metrics.pop_back();
                        if (calls == 4) loss.metrics[0].name = "other";
                        return loss;
                      }},
                 halves, alone);
  const std::int64_t some[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  CHECK(error_of([&] { step(1, data.rows(some)); }) ==
        "loss: every micro-batch must have the same metrics, got 1 after 2");
  CHECK(error_of([&] { step(1, data.rows(some)); }) ==
        "loss: every micro-batch must have the same metrics, got 'other' after 'accuracy'");
  CHECK(error_of([&] { step(1, data.rows(std::span(some).first(4))); }) ==
        "train step: a rank's batch must have 12 rows, got shape [4, 3]");
  CHECK(error_of([&] {
          step(1, {data.rows(some).inputs, Tensor::ones({12, 2}, DType::i32), {}});
        }) == "train step: rows must have 1 targets as at the first step, got 2");
  CHECK(error_of([&] { step(1, {}); }) == "train step: a rank's batch must have 12 rows, got null");
  CHECK(error_of([&] { step(1, data.rows(some)).at("nothing"); }) ==
        "step: has no number 'nothing'");
}

}  // namespace weft::train::trainer_use_test
