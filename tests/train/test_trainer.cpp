// The trainer with modules that are not language models.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>

#include "weft/autograd/cross_entropy.h"
#include "weft/autograd/mse.h"
#include "weft/autograd/reduce.h"
#include "weft/core/error.h"
#include "weft/core/random.h"
#include "weft/io/checkpoint.h"
#include "weft/io/file.h"
#include "weft/io/metrics.h"
#include "weft/nn/linear.h"
#include "weft/tests/ranks.h"
#include "weft/tests/silence.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"
#include "weft/tests/trainer_support.h"
#include "weft/train/trainer.h"

namespace weft::train::trainer_test {
namespace {

using test::error_of;

// Trains on its ranks; returns the exit status.
int train(const Options& o, bool ignores = true) {
  const test::Silence silence;
  const data::TensorDataset training = labelled(ignores), validation = labelled();
  return run_on_ranks(o, [&](const Ranks& ranks) {
    TwoLayers model;
    Trainer trainer(
        model, o, [&](const data::Batch& b) { return loss_of(model, b); }, ranks);
    return trainer.fit(training, validation);
  });
}

std::vector<io::Json> rows_of(const Options& o) {
  return io::read_metrics(o.out + "/metrics.jsonl");
}

std::string weights_of(const Options& o) {
  const io::Checkpoint last = *io::find_checkpoint(o.out);
  return io::read_file(last.shards("model").at(0)) + io::read_file(last.shards("optim").at(0));
}

}  // namespace

TEST_CASE("trainer: micro-batches and ranks with different counts equal one batch") {
  const test::TempFolder folder;
  const Options plain = options_of(folder / "plain");
  REQUIRE(train(plain) == 0);
  const std::vector<io::Json> want = rows_of(plain);
  REQUIRE(want.size() == 6);
  CHECK(number(want[5], "val_accuracy") > 0.3);
  CHECK(number(want[5], "val_half") == 0.5);
  for (const bool zero : {false, true})
    for (const std::int64_t ranks : {0, 2, 3})
      for (const std::int64_t micro : {0, 2}) {
        Options o = options_of(folder / message("{}{}{}", zero, ranks, micro));
        o.parallel.ranks = ranks;
        o.parallel.zero = zero;
        o.micro_batch = micro;
        CAPTURE(ranks);
        CAPTURE(micro);
        REQUIRE(train(o) == 0);
        const std::vector<io::Json> got = rows_of(o);
        REQUIRE(got.size() == want.size());
        for (std::size_t i = 0; i < got.size(); ++i)
          for (const char* key : {"loss", "grad_norm", "accuracy", "half"})
            CHECK(number(got[i], key) == doctest::Approx(number(want[i], key)).epsilon(1e-4));
        CHECK(number(got[5], "val_loss") ==
              doctest::Approx(number(want[5], "val_loss")).epsilon(1e-4));
        CHECK(number(got[5], "val_accuracy") == number(want[5], "val_accuracy"));
      }
}

TEST_CASE("trainer: a step uses the mean over the targets that count") {
  const test::TempFolder folder;
  Options o = options_of(folder / "sgd", 1);
  o.optimizer.kind = optim::Kind::sgd;
  o.optimizer.lr = o.optimizer.min_lr = 1;
  o.optimizer.beta1 = o.optimizer.weight_decay = 0;
  for (const double clip : {0.0, 0.05}) {
    o.optimizer.clip = clip;
    const Ranks alone = Ranks::alone(o);
    manual_seed(1);
    TwoLayers model, same;
    same.load_state_dict(model.state_dict());
    TrainStep step(
        {.model = model, .loss = [&](const data::Batch& b) { return loss_of(model, b); }}, o,
        alone);
    const data::TensorDataset data = labelled();
    const std::int64_t some[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    const data::Batch batch = data.rows(some);
    const StepResult result = step(1, batch);
    Tape tape;
    const Tensor mean = cross_entropy(same(batch.inputs), batch.targets);
    mean.backward();
    const double norm = optim::measure_clip(same.named_parameters(), 0).norm.item();
    CHECK(result.loss() == doctest::Approx(mean.item()).epsilon(1e-6));
    // 8 of the 12 rows count: hits over these.
    double hits = 0;
    const std::vector<double> logits = test::values(same(batch.inputs).detach()),
                              classes = test::values(batch.targets);
    for (std::size_t i = 0; i < classes.size(); ++i) {
      const auto row = logits.begin() + static_cast<std::ptrdiff_t>(4 * i);
      hits += std::max_element(row, row + 4) - row == static_cast<std::ptrdiff_t>(classes[i]);
    }
    CHECK(hits > 0);
    CHECK(result.at("accuracy").value() == doctest::Approx(hits / 8));
    CHECK(result.grad_norm() == doctest::Approx(norm).epsilon(1e-6));
    const double scale = clip > 0 ? clip / norm : 1;
    const auto got = model.parameters(), start = same.parameters();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const NoGradGuard off;
      const Tensor want = sub(start[i], mul(start[i].grad(), scale));
      CHECK(max(abs(sub(got[i], want))).item() < 1e-6);
    }
  }
}

TEST_CASE("trainer: an interrupted and resumed run has the bytes of an uninterrupted one") {
  const test::TempFolder folder;
  for (const std::int64_t ranks : {0, 2}) {
    Options whole = options_of(folder / message("whole{}", ranks)),
            cut = options_of(folder / message("cut{}", ranks));
    whole.parallel.ranks = cut.parallel.ranks = ranks;
    REQUIRE(train(whole) == 0);
    {
      const test::Silence silence;
      const data::TensorDataset training = labelled(), validation = labelled();
      std::atomic<int> calls = 0;
      const int status = run_on_ranks(cut, [&](const Ranks& r) {
        TwoLayers model;
        Trainer trainer(
            model, cut,
            [&](const data::Batch& b) {
              if (++calls == 3) std::raise(SIGINT);
              return loss_of(model, b);
            },
            r);
        return trainer.fit(training, validation);
      });
      CHECK(status == 130);
    }
    const std::size_t before = rows_of(cut).size();
    CHECK(before < 6);
    cut.run.resume = true;
    REQUIRE(train(cut) == 0);
    CHECK(rows_of(cut).size() == 6);
    CHECK(weights_of(cut) == weights_of(whole));
    for (std::size_t i = 0; i < 6; ++i)
      CHECK(number(rows_of(cut)[i], "loss") == number(rows_of(whole)[i], "loss"));
  }
}

TEST_CASE("trainer: a loss scale that is a power of two changes no bit") {
  const test::TempFolder folder;
  for (const std::int64_t ranks : {0, 2}) {
    Options plain = options_of(folder / message("plain{}", ranks)),
            with = options_of(folder / message("with{}", ranks));
    plain.parallel.ranks = with.parallel.ranks = ranks;
    with.optimizer.loss_scale = 1024;
    with.optimizer.loss_scale_steps = 2;
    REQUIRE(train(plain) == 0);
    REQUIRE(train(with) == 0);
    const std::vector<io::Json> want = rows_of(plain), got = rows_of(with);
    const double scales[] = {1024, 1024, 2048, 2048, 4096, 4096};
    for (std::size_t i = 0; i < 6; ++i) {
      CHECK(number(got[i], "loss") == number(want[i], "loss"));
      CHECK(number(got[i], "grad_norm") == number(want[i], "grad_norm"));
      CHECK(number(got[i], "loss_scale") == scales[i]);
      CHECK(number(got[i], "skipped_steps") == 0);
    }
    CHECK(!want[0].find("loss_scale"));
  }
}

TEST_CASE("trainer: an overflow halves the loss scale and skips the step, on all ranks alike") {
  const test::TempFolder folder;
  std::vector<io::Json> one;
  for (const std::int64_t ranks : {0, 2}) {
    // f32 ends at 3.4e38, and the cotangent is the scale over 36 targets or more.
    Options o = options_of(folder / message("{}", ranks), 12);
    o.parallel.ranks = ranks;
    o.parallel.zero = ranks > 0;
    o.optimizer.loss_scale = 0x1p140;
    o.optimizer.loss_scale_steps = 3;
    Options cut = o;
    cut.out = folder / message("cut{}", ranks);
    REQUIRE(train(o) == 0);
    const std::vector<io::Json> rows = rows_of(o);
    REQUIRE(rows.size() == 12);
    double scale = 0x1p140, skipped = 0, good = 0;
    for (const io::Json& row : rows) {
      CHECK(number(row, "loss_scale") == scale);
      const bool overflows = row.at("grad_norm").is_null();
      skipped += overflows ? 1 : 0;
      good = overflows ? 0 : good + 1;
      CHECK(number(row, "skipped_steps") == skipped);
      if (overflows) scale /= 2;
      if (good == 3) {
        scale *= 2;
        good = 0;
      }
    }
    CHECK(skipped > 3);
    CHECK(skipped < 12);
    CHECK(number(rows.back(), "loss") < number(rows[0], "loss"));
    if (one.empty())
      one = rows;
    else
      for (std::size_t i = 0; i < rows.size(); ++i) {
        CHECK(number(rows[i], "loss_scale") == number(one[i], "loss_scale"));
        CHECK(number(rows[i], "loss") == doctest::Approx(number(one[i], "loss")).epsilon(1e-4));
      }
    // The scale and its count continue after a resume.
    cut.steps = 7;
    REQUIRE(train(cut) == 0);
    cut.steps = 12;
    cut.run.resume = true;
    REQUIRE(train(cut) == 0);
    CHECK(weights_of(cut) == weights_of(o));
    for (std::size_t i = 0; i < rows.size(); ++i)
      CHECK(number(rows_of(cut)[i], "loss_scale") == number(rows[i], "loss_scale"));
  }
}

TEST_CASE("trainer: float targets, bf16 weights and data that end in the middle of a batch") {
  const test::TempFolder folder;
  const data::TensorDataset data(points(), points().narrow(1, 0, 2).contiguous());
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    Options o = options_of(folder / name(dtype), 40);
    o.batch = 50;
    o.machine.dtype = dtype;
    manual_seed(3);
    nn::Linear model(3, 2);
    const test::Silence silence;
    Trainer trainer(model, o, [&](const data::Batch& b) -> Loss {
      const DType real = dtype == DType::f64 ? dtype : DType::f32;
      const Tensor y = model(b.inputs.to(dtype)).to(real);
      return {.sum = mse_loss(y, b.targets.to(real), Reduction::sum)};
    });
    REQUIRE(trainer.fit(data, data) == 0);
    CHECK(model.weight.dtype() == dtype);
    const std::vector<io::Json> rows = rows_of(o);
    CHECK(number(rows.back(), "loss") < number(rows.front(), "loss") / 2);
    // All 60 rows: 50 and 10.
    const NoGradGuard off;
    const Tensor error =
        sub(model(points().to(dtype)).to(DType::f64), points().narrow(1, 0, 2).to(DType::f64));
    CHECK(number(rows.back(), "val_loss") == doctest::Approx(mul(error, error).mean().item())
                                                 .epsilon(dtype == DType::bf16 ? 0.02 : 1e-5));
  }
}

TEST_CASE("trainer: ranks start from the first rank's values and a NaN on one stops all") {
  const test::TempFolder folder;
  Options o = options_of(folder / "x", 2);
  o.parallel.ranks = 2;
  const test::Silence silence;
  const data::TensorDataset data = labelled();
  int status[2] = {};
  run_on_ranks(o, [&](const Ranks& ranks) {
    TwoLayers model;
    model.up.bias.fill_(ranks.rank());
    const Task task{.model = model,
                    .loss = [&](const data::Batch& b) { return loss_of(model, b); }};
    const TrainStep step(task, o, ranks);
    CHECK(test::values(model.up.bias)[0] == 0);
    return 0;
  });
  set_log_handler([](std::string_view) {});
  run_on_ranks(o, [&](const Ranks& ranks) {
    TwoLayers model;
    if (ranks.rank() == 0) model.down.bias.fill_(INFINITY);
    Trainer trainer(
        model, o, [&](const data::Batch& b) { return loss_of(model, b); }, ranks);
    return status[ranks.rank()] = trainer.fit(data);
  });
  set_log_handler(nullptr);
  for (const int s : status) CHECK(s == static_cast<int>(Fault::non_finite));
  CHECK(!io::exists(o.out + "/metrics.jsonl"));
}

TEST_CASE("trainer: an evaluation without a target that counts is an error on every rank") {
  const test::TempFolder folder;
  const test::Silence silence;
  const data::TensorDataset training = labelled(),
                            ignored(points(), Tensor::full({kPoints}, data::kIgnore, DType::i32));
  for (const std::int64_t ranks : {0, 2}) {
    Options o = options_of(folder / std::to_string(ranks), 2);
    o.parallel.ranks = ranks;
    o.run.keep_best = true;
    std::string errors[2];
    run_on_ranks(o, [&](const Ranks& r) {
      TwoLayers model;
      Trainer trainer(
          model, o, [&](const data::Batch& b) { return loss_of(model, b); }, r);
      errors[r.rank()] = error_of([&] { trainer.fit(training, ignored); });
      return 0;
    });
    for (int r = 0; r < std::max<int>(1, static_cast<int>(ranks)); ++r)
      CHECK(errors[r] == "evaluation: at least 1 target of 60 rows must count, got none");
    CHECK(!io::exists(o.out + "/best"));
    CHECK(rows_of(o).size() == 2);
  }
}

TEST_CASE("trainer: norms and zero counts cover the whole model in every layout") {
  const test::TempFolder folder;
  const test::Silence silence;
  // One of the inputs is 0, so 8 weights get a gradient of 0.
  const Tensor inputs = points();
  inputs.narrow(1, 1, 1).zero_();
  const data::TensorDataset training(inputs, Tensor::ones({kPoints}, DType::i32));
  for (const std::int64_t ranks : {0, 3})
    for (const bool zero : {false, true}) {
      Options o = options_of(folder / message("{}{}", ranks, zero), 3);
      o.parallel.ranks = ranks;
      o.parallel.zero = zero;
      o.run.norms = true;
      double want = 0;
      run_on_ranks(o, [&](const Ranks& r) {
        TwoLayers model;
        Trainer trainer(
            model, o, [&](const data::Batch& b) { return classify(model(b.inputs), b.targets); },
            r);
        REQUIRE(trainer.fit(training) == 0);
        double squares = 0;
        for (const Tensor& p : model.parameters())
          for (const double v : test::values(p)) squares += v * v;
        if (r.is_first()) want = std::sqrt(squares);
        return 0;
      });
      const std::vector<io::Json> rows = rows_of(o);
      REQUIRE(rows.size() == 3);
      CHECK(number(rows[2], "param_norm") == doctest::Approx(want).epsilon(1e-6));
      CHECK(number(rows[2], "zero_gradients") == 8);
    }
}

}  // namespace weft::train::trainer_test
