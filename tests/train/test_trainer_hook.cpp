// Task::after_step, and runs that print nothing.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <vector>

#include "weft/io/checkpoint.h"
#include "weft/io/file.h"
#include "weft/io/metrics.h"
#include "weft/nn/shard.h"
#include "weft/tests/silence.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"
#include "weft/tests/trainer_support.h"

namespace weft::train::trainer_hook_test {
namespace {

using namespace trainer_test;

// For --fsdp, which gathers the weights of a layer when it is used.
struct Layers : TwoLayers {
  Tensor operator()(const Tensor& x) const {
    const Tensor y = gelu(at_use(up)(x));
    return at_use(down)(y);
  }
  template <class Part>
  const Part& at_use(const Part& part) const {
    if (const nn::Shard& s = nn::shard_of(*this); s.before_use) s.before_use(part);
    return part;
  }
  unsigned shard_members() const override { return nn::Shard::kBeforeUse; }
};

using Hook = std::function<Next(const Ranks& ranks, const FinishedStep& step)>;

int train(const Options& o, const Hook& hook = {}) {
  const data::TensorDataset training = labelled(), validation = labelled();
  return run_on_ranks(o, [&](const Ranks& ranks) {
    manual_seed(2);
    Layers model;
    Task task{.model = model,
              .loss = [&](const data::Batch& b) { return classify(model(b.inputs), b.targets); }};
    if (hook) task.after_step = [&](const FinishedStep& step) { return hook(ranks, step); };
    return Trainer(task, o, ranks).fit(training, validation);
  });
}

std::vector<io::Json> rows_of(const Options& o) {
  return io::read_metrics(o.out + "/metrics.jsonl");
}

std::string last_weights(const Options& o) {
  const io::Checkpoint last = *io::find_checkpoint(o.out);
  return io::read_file(last.shards("model").at(0)) + io::read_file(last.shards("optim").at(0));
}

}  // namespace

TEST_CASE("trainer_hook: a stop that one rank asks for ends all after the same step") {
  const test::TempFolder folder;
  const test::Silence silence;
  for (const std::int64_t ranks : {0, 2}) {
    Options whole = options_of(folder / message("whole{}", ranks)),
            cut = options_of(folder / message("cut{}", ranks));
    whole.parallel.ranks = cut.parallel.ranks = ranks;
    REQUIRE(train(whole) == 0);
    const Hook last_stops_at_3 = [&](const Ranks& r, const FinishedStep& step) {
      return r.rank() == r.size() - 1 && step.number == 3 ? Next::stop : Next::go_on;
    };
    REQUIRE(train(cut, last_stops_at_3) == 0);
    const std::vector<io::Json> want = rows_of(whole), stopped = rows_of(cut);
    REQUIRE(stopped.size() == 3);
    CHECK(stopped.back().find("val_loss"));
    CHECK(io::find_checkpoint(cut.out)->step == 3);
    for (std::size_t i = 0; i < 3; ++i)
      CHECK(number(stopped[i], "loss") == number(want[i], "loss"));

    // A resumed run goes on after that step, with the bytes of one that never stopped.
    cut.run.resume = true;
    std::vector<std::int64_t> seen;
    REQUIRE(train(cut, [&](const Ranks& r, const FinishedStep& step) {
              if (r.is_first()) seen.push_back(step.number);
              return Next::go_on;
            }) == 0);
    CHECK(seen == std::vector<std::int64_t>{4, 5, 6});
    REQUIRE(rows_of(cut).size() == 6);
    CHECK(last_weights(cut) == last_weights(whole));
    for (std::size_t i = 0; i < 6; ++i)
      CHECK(number(rows_of(cut)[i], "loss") == number(want[i], "loss"));
  }
}

TEST_CASE("trainer_hook: each step's numbers and whole weights, on every rank") {
  const test::TempFolder folder;
  const test::Silence silence;
  // Means of the weights over the steps, of one rank and of the others.
  std::vector<double> want;
  for (const char* const layout : {"one", "ddp", "zero", "fsdp"}) {
    CAPTURE(layout);
    Options o = options_of(folder / layout);
    o.parallel.ranks = layout == std::string("one") ? 0 : 2;
    o.parallel.zero = layout == std::string("zero");
    o.parallel.fsdp = layout == std::string("fsdp");
    std::vector<double> mean[2], losses;
    REQUIRE(train(o, [&](const Ranks& r, const FinishedStep& step) {
              std::vector<double>& sums = mean[r.rank()];
              std::size_t at = 0;
              for (const NamedTensor& p : step.model().named_parameters())
                for (const double v : test::values(p.tensor)) {
                  if (at == sums.size()) sums.push_back(0);
                  sums[at++] += v / 6;
                }
              if (r.is_first()) losses.push_back(step.result.loss());
              return Next::go_on;
            }) == 0);
    const std::vector<io::Json> rows = rows_of(o);
    REQUIRE(losses.size() == rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) CHECK(losses[i] == number(rows[i], "loss"));
    if (want.empty()) want = mean[0];
    for (int r = 0; r < std::max<int>(1, static_cast<int>(o.parallel.ranks)); ++r) {
      REQUIRE(mean[r].size() == 3 * 8 + 8 + 8 * 4 + 4);
      for (std::size_t i = 0; i < want.size(); ++i)
        CHECK(mean[r][i] == doctest::Approx(want[i]).epsilon(1e-4));
    }
    // Reading changes nothing.
    Options plain = o;
    plain.out += "_plain";
    REQUIRE(train(plain) == 0);
    CHECK(last_weights(o) == last_weights(plain));
  }
}

TEST_CASE("trainer_hook: a mean of the weights and an early stop") {
  const test::TempFolder folder;
  const test::Silence silence;
  const Options options = options_of(folder / "out", 200);
  const Ranks ranks = Ranks::alone(options);
  const data::TensorDataset training = labelled();
  TwoLayers model;
  const auto loss = [&](const data::Batch& b) { return loss_of(model, b); };
  const double target = 0.5;
  StateDict mean;  // an exponential moving average of the weights
  train::Task task{.model = model, .loss = loss};
  task.after_step = [&](const train::FinishedStep& step) {
    for (const auto& [name, weight] : step.model().state_dict()) {
      Tensor& m = mean[name];
      m = m.defined() ? m * 0.9 + weight.detach() * 0.1 : weight.detach().clone();
    }
    return step.result.loss() < target ? train::Next::stop : train::Next::go_on;
  };
  const int status = train::Trainer(task, options, ranks).fit(training);
  CHECK(status == 0);
  const std::vector<io::Json> rows = rows_of(options);
  CHECK(rows.size() < 200);
  for (std::size_t i = 0; i < rows.size(); ++i)
    CHECK((number(rows[i], "loss") < target) == (i + 1 == rows.size()));
  CHECK(mean.size() == 4);
  for (const auto& [name, weight] : model.state_dict()) {
    CHECK(mean.at(name).shape() == weight.shape());
    CHECK(test::values(mean.at(name)) != test::values(weight));
  }
}

TEST_CASE("trainer_hook: it is not called for a step whose loss is not finite") {
  const test::TempFolder folder;
  const test::Silence silence;
  const data::TensorDataset training = labelled();
  const Options o = options_of(folder / "out");
  const Ranks alone = Ranks::alone(o);
  TwoLayers model;
  int calls = 0;
  Task task{.model = model, .loss = [&](const data::Batch& b) {
              Loss loss = loss_of(model, b);
              if (calls == 2) loss.sum = mul(loss.sum, NAN);
              return loss;
            }};
  task.after_step = [&](const FinishedStep&) {
    ++calls;
    return Next::go_on;
  };
  CHECK(Trainer(task, o, alone).fit(training) == static_cast<int>(Fault::non_finite));
  CHECK(calls == 2);
}

TEST_CASE("trainer_hook: a quiet run prints nothing") {
  const test::TempFolder folder;
  const auto bytes_printed = [&](Options o) {
    const std::string file = folder / "printed";
    std::fflush(stdout);
    const int before = ::dup(STDOUT_FILENO),
              to = ::open(file.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    ::dup2(to, STDOUT_FILENO);
    for (const bool resumes : {false, true}) {  // cut at step 3, resumed, and done already
      o.run.resume = resumes;
      CHECK(train(o, [&](const Ranks&, const FinishedStep& step) {
              return step.number == 3 ? Next::stop : Next::go_on;
            }) == 0);
    }
    CHECK(train(o) == 0);
    std::fflush(stdout);
    ::dup2(before, STDOUT_FILENO);
    ::close(before);
    ::close(to);
    return std::filesystem::file_size(file);
  };
  Options o = options_of(folder / "loud");
  o.run.profile = true;
  CHECK(bytes_printed(o) > 0);
  o.out = folder / "quiet";
  o.quiet = true;
  CHECK(bytes_printed(o) == 0);
  CHECK(rows_of(o).size() == 6);
  CHECK(io::exists(o.out + "/profile.svg"));
}

}  // namespace weft::train::trainer_hook_test
