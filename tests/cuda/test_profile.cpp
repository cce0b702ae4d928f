#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/reduce.h"
#include "weft/core/profile_table.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::profile_test {

TEST_CASE("profile: kernels on a GPU are timed by events") {
  const Tensor a = test::random({32, 32}).to(DType::f32).to(test::kGpu).set_requires_grad();
  Profiler profile;
  for (int step = 0; step < 3; ++step) {
    profile.start("forward");
    const Tape tape;
    const Tensor loss = sum(relu(matmul(a, a)));
    profile.phase("backward");
    loss.backward();
    profile.stop();
  }
  double seconds = 0;
  std::int64_t products = 0;
  for (const Profiler::Entry& e : profile.entries()) {
    CAPTURE(e.kernel);
    CHECK(e.work.seconds > 0);
    CHECK(e.work.launches >= e.work.calls);
    seconds += e.work.seconds;
    if (e.kernel != "gemm") continue;
    CHECK(e.op == "matmul");  // not from the table, which leaves out what takes little time
    products += e.work.calls;
  }
  CHECK(products == 3 * 3);  // one forward, two backward
  CHECK(seconds < profile.seconds() * 1.01);
  CHECK(!profile_table(profile, {}).empty());
}

}  // namespace weft::profile_test
