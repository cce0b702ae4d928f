#include <doctest/doctest.h>

#include "weft/core/random.h"
#include "weft/nn/dropout.h"
#include "weft/tests/support.h"

namespace weft::dropout_module_test {

TEST_CASE("dropout: in a RandomScope a module without a name is refused") {
  nn::Dropout drop(0.5);
  const Tensor x = Tensor::ones({8});
  drop(x);
  const RandomScope random({.seed = 1});
  CHECK(test::error_of([&] { drop(x); }) ==
        "module: in a RandomScope modules that draw random numbers must have names, call "
        "nn::assign_names(model), got none for Dropout(0.5)");
  nn::assign_names(drop);
  drop(x);
}

}  // namespace weft::dropout_module_test
