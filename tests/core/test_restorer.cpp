#include <doctest/doctest.h>

#include "weft/core/error.h"
#include "weft/core/restorer.h"
#include "weft/core/storage.h"
#include "weft/core/tensor.h"
#include "weft/tests/support.h"

namespace weft {
namespace {

// Fails as often as `failures` says, as for want of memory.
class Sevens : public Restorer {
 public:
  explicit Sevens(int failures) : failures_(failures) {}
  void restore(Storage& s) override {
    check(failures_-- <= 0, "sevens: no memory");
    const Tensor sevens = Tensor::full({3}, 7);
    move_block(sevens.storage(), &s);
  }

 private:
  int failures_;
};

TEST_CASE("restorer: a restore that failed can be tried again") {
  const Tensor x = Tensor::zeros({3});
  release_until_needed(x.storage(), new Sevens(2));
  CHECK(test::error_of([&] { restore_storage(x.storage()); }) == "sevens: no memory");
  CHECK(test::error_of([&] { RestoredScope scope(x.storage()); }) == "sevens: no memory");
  CHECK(x.storage()->released);
  {
    const RestoredScope scope(x.storage());
    CHECK(x.data<float>()[2] == 7);
  }
  CHECK(x.storage()->released);
  restore_storage(x.storage());
  CHECK(x.data<float>()[0] == 7);
}

TEST_CASE("restorer: the storage that empty tensors share keeps none") {
  Storage* const s = Tensor::empty({0, 3}).storage();
  release_until_needed(s, new Sevens(0));
  CHECK(s->restorer == nullptr);
  CHECK_FALSE(s->released);
}

}  // namespace
}  // namespace weft
