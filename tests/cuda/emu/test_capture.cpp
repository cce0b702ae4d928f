// Capturing streams: the emulated driver refuses what a real one refuses.
#include <doctest/doctest.h>

#include <vector>

#include "weft/core/kernels/cuda_runtime.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::capture_test {

using cuda::Stream;
using test::error_of;

TEST_CASE("graph: the emulated driver refuses what a real one refuses") {
  const Tensor x = Tensor::zeros({40}, DType::f32, test::kGpu);
  Stream side = Stream::take();
  const auto stream = Stream::current().handle();
  std::vector<float> pageable(40);
  const auto inside = cuda::rt::create_event(false), outside = cuda::rt::create_event(false);
  cuda::rt::record_event(outside, side.handle());
  CHECK(error_of([&] { cuda::rt::end_capture(stream); }) ==
        "graph: end_capture() needs a stream that is captured");
  cuda::rt::begin_capture(stream);
  const char* const copies = "graph: a copy from or to pageable memory must not be captured";
  using Kind = cuda::rt::CopyKind;
  CHECK(error_of([&] { cuda::rt::copy(x.raw(), pageable.data(), 160, Kind::to_device, stream); }) ==
        copies);
  CHECK(error_of([&] { cuda::rt::copy(pageable.data(), x.raw(), 160, Kind::to_host, stream); }) ==
        copies);
  CHECK(error_of([] { cuda::rt::synchronize_device(); }) ==
        "graph: the host must not wait for a device while a stream of it is captured");
  CHECK(error_of([&] { cuda::rt::wait_event(stream, outside); }) ==
        "graph: a stream that is captured must not wait for an event from outside");
  cuda::rt::record_event(inside, stream);
  CHECK(error_of([&] { cuda::rt::wait_event(side.handle(), inside); }) ==
        "graph: a stream outside of a capture must not wait for an event inside");
  const char* const asks =
      "graph: the host must not ask for an event that was recorded in a capture";
  CHECK(error_of([&] { (void)cuda::rt::event_done(inside); }) == asks);
  cuda::rt::wait_event(stream, inside);
  const auto graph = cuda::rt::end_capture(stream);
  CHECK(error_of([&] { cuda::rt::synchronize_event(inside); }) == asks);
  cuda::rt::begin_capture(stream);
  CHECK(error_of([&] { cuda::rt::launch_graph(graph, stream); }) ==
        "graph: a graph must not be launched into a capture");
  cuda::rt::destroy_graph(cuda::rt::end_capture(stream));
  cuda::rt::destroy_graph(graph);
  cuda::rt::destroy_event(inside);
  cuda::rt::destroy_event(outside);
  side.give_back();
}

}  // namespace weft::capture_test
