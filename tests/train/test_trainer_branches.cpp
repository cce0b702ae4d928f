// Models of which a step uses a part.
#include <doctest/doctest.h>

#include <mutex>
#include <vector>

#include "weft/io/metrics.h"
#include "weft/tests/silence.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"
#include "weft/tests/trainer_support.h"

namespace weft::train::trainer_branches_test {
namespace {

using namespace trainer_test;

// Rows of odd and even class go through a branch each.
struct Branches : nn::Module {
  nn::Linear odd{3, 4}, even{3, 4}, later{3, 4};
  bool use_later = false, lists_later = true;
  Tensor operator()(const Tensor& x, bool is_odd) const {
    const Tensor y = is_odd ? odd(x) : even(x);
    return use_later ? y + later(x) : y;
  }
  void visit(nn::Visitor& v) override {
    v("odd", odd);
    v("even", even);
    if (lists_later) v("later", later);
  }
};

// One row of one class at a time, even classes in even rows.
data::TensorDataset one_class_rows() {
  const Tensor classes = Tensor::empty({kPoints}, DType::i32);
  for (std::int64_t i = 0; i < kPoints; ++i)
    classes.data<std::int32_t>()[i] = static_cast<std::int32_t>(i % 4);
  return {points(), classes};
}

Loss loss_of_branches(const Branches& model, const data::Batch& b) {
  return classify(model(b.inputs, b.targets.select(0, 0).item_int() % 2 == 1), b.targets);
}

std::vector<std::string>& logged() {
  static std::vector<std::string> lines;
  return lines;
}

// The lines that f logs.
template <class F>
std::vector<std::string> logged_by(F&& f) {
  static std::mutex one_at_a_time;
  logged().clear();
  set_log_handler([](std::string_view line) {
    const std::scoped_lock lock(one_at_a_time);
    logged().emplace_back(line);
  });
  f();
  set_log_handler(nullptr);
  return logged();
}

}  // namespace

TEST_CASE(
    "trainer_branches: parameters that the first micro-batch does not use are trained later") {
  const test::TempFolder folder;
  const test::Silence silence;
  const data::TensorDataset training = one_class_rows();
  std::vector<double> want;
  for (const std::int64_t ranks : {0, 2})
    for (const bool zero : {false, true}) {
      Options o = options_of(folder / message("{}{}", ranks, zero), 5);
      o.parallel.ranks = ranks;
      o.parallel.zero = zero && ranks > 0;
      o.micro_batch = 1;
      std::vector<double> got;
      const std::vector<std::string> lines = logged_by([&] {
        run_on_ranks(o, [&](const Ranks& r) {
          manual_seed(4);
          Branches model;
          Branches first;
          first.load_state_dict(model.state_dict());
          Trainer trainer(
              {.model = model,
               .loss = [&](const data::Batch& b) { return loss_of_branches(model, b); }},
              o, r);
          const int status = trainer.fit(training);
          for (const auto& [name, value] : first.state_dict()) {
            const bool changed = test::values(value) != test::values(model.state_dict().at(name));
            CAPTURE(name);
            CHECK(changed == !name.starts_with("later"));
          }
          if (r.is_first()) got = test::values(model.odd.weight);
          return status;
        });
      });
      std::vector<std::string> of_model;
      for (const std::string& line : lines)
        if (line.starts_with("model: ")) of_model.push_back(line);
      REQUIRE(of_model.size() == 1);
      CHECK(of_model[0].ends_with("and 3 other parameters; what is never used is not trained"));
      if (want.empty()) want = got;
      REQUIRE(got.size() == want.size());
      for (std::size_t i = 0; i < got.size(); ++i)
        CHECK(got[i] == doctest::Approx(want[i]).epsilon(1e-4));
    }
}

TEST_CASE("trainer_branches: a trained tensor that visit() omits is refused") {
  const test::TempFolder folder;
  const test::Silence silence;
  Branches model;
  model.use_later = true;
  model.lists_later = false;
  Trainer trainer(model, options_of(folder / "out"),
                  [&](const data::Batch& b) { return loss_of_branches(model, b); });
  CHECK(test::error_of([&] { trainer.fit(one_class_rows()); }) ==
        "model: a tensor of shape [4, 3] requires a gradient and was used, but visit() does not "
        "list it");
}

}  // namespace weft::train::trainer_branches_test
