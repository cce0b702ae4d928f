#include <doctest/doctest.h>

#include "weft/core/state_dict.h"
#include "weft/tests/support.h"

namespace weft::state_names_test {
using test::error_of;

namespace {

StateDict example() {
  return {{"encoder.self_attn.weight", Tensor::ones({1})},
          {"encoder.self_attn.self_attn.bias", Tensor::ones({2})},
          {"head.weight", Tensor::ones({3})}};
}

std::string names(const StateDict& state) {
  std::string out;
  for (const auto& [name, tensor] : state) out += name + ' ' + std::to_string(tensor.numel()) + ' ';
  return out;
}

}  // namespace

TEST_CASE("state names: a prefix goes on and comes off") {
  const StateDict state = example();
  CHECK(names(without_prefix(state, "encoder.")) ==
        "self_attn.self_attn.bias 2 self_attn.weight 1 ");
  CHECK(names(with_prefix(without_prefix(state, "head."), "model.")) == "model.weight 3 ");
  CHECK(names(without_prefix(with_prefix(state, "module."), "module.")) == names(state));
  CHECK(with_prefix(state, "a.").at("a.head.weight").same(state.at("head.weight")));
  CHECK(error_of([&] { without_prefix(state, "module."); }) ==
        "without_prefix: a name must begin with 'module.', got "
        "'encoder.self_attn.self_attn.bias' and others");
  CHECK(error_of([] { without_prefix({}, "a"); }) ==
        "without_prefix: a name must begin with 'a', got no names");
}

TEST_CASE("state names: renamed() replaces every occurrence, one pair after the other") {
  const StateDict state = example();
  CHECK(names(renamed(state, {{"self_attn.", "attn."}, {"encoder", "enc"}})) ==
        "enc.attn.attn.bias 2 enc.attn.weight 1 head.weight 3 ");
  CHECK(names(renamed(state, {{"encoder.", ""}, {"head", "headhead"}})) ==
        "headhead.weight 3 self_attn.self_attn.bias 2 self_attn.weight 1 ");
  CHECK(names(renamed(state, {})) == names(state));
  CHECK(error_of([&] {
          renamed(state, {{"decoder", "d"}});
        }) == "renamed: 'decoder' must occur in a name, got none");
  CHECK(error_of([&] {
          renamed(state, {{"", "d"}});
        }) == "renamed: the text to replace must not be empty");
  CHECK(error_of([&] {
          renamed(state, {{"encoder.self_attn", "head"}});
        }) ==
        "renamed: every entry needs its own name, got 'head.weight' twice after "
        "'encoder.self_attn' became 'head'");
}

}  // namespace weft::state_names_test
