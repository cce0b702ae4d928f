#include <doctest/doctest.h>

#include "weft/autograd/reduce.h"
#include "weft/nn/leaves.h"
#include "weft/nn/linear.h"
#include "weft/tests/support.h"

namespace weft::leaves_test {

namespace {

struct Forgetful : nn::Module {
  nn::Linear listed, forgotten;
  bool use_listed = true;
  Forgetful() : listed(3, 3, {.bias = false}), forgotten(3, 3, {.bias = false}) {}
  Tensor operator()(const Tensor& x) const { return forgotten(use_listed ? listed(x) : x); }
  void visit(nn::Visitor& v) override { v("listed", listed); }
};

struct Complete : Forgetful {
  void visit(nn::Visitor& v) override {
    v("listed", listed);
    v("forgotten", forgotten);
  }
};

nn::LeafReport report_of(Forgetful& model) {
  Tape tape;
  sum(model(Tensor::ones({2, 3})));
  return nn::compare_leaves(tape, model);
}

}  // namespace

TEST_CASE("leaves: a parameter missing from visit() is reported by its shape") {
  Forgetful model;
  const nn::LeafReport report = report_of(model);
  REQUIRE(report.strangers.size() == 1);
  CHECK(report.strangers[0].same(model.forgotten.weight));
  CHECK(report.unused.empty());
  CHECK(report.text() ==
        "a tensor of shape [3, 3] requires a gradient and was used, but visit() does not list it");
}

TEST_CASE("leaves: an unused parameter is reported by name") {
  Complete model;
  CHECK(report_of(model).text() == "");
  model.use_listed = false;
  CHECK(report_of(model).text() ==
        "listed.weight requires a gradient but no op on this tape used it");
  model.listed.weight.set_requires_grad(false);
  CHECK(report_of(model).text() == "");
}

}  // namespace weft::leaves_test
