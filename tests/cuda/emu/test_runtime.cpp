// Streams, events and devices on emulated GPUs, whose streams run their work as late as possible.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/fp8.h"
#include "weft/core/kernels/cuda_runtime.h"
#include "weft/cuda/emu/code.h"
#include "weft/cuda/emu/control.h"
#include "weft/tests/cuda/emu/run.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::runtime_test {
namespace {

using cuda::Event;
using cuda::Stream;
using cuda::StreamScope;
using test::different_bits;
using test::error_of;
using test::kGpu;

constexpr Device kSecondGpu{Device::Kind::cuda, 1};

__global__ void add_kernel(float* p, std::int64_t n, float v) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) p[i] += v;
}
void increase(const Tensor& t, float v) {
  cuda::detail::use_device(t.device().index);
  cuda::launch(add_kernel, cuda::grid_of(cuda::blocks_for(t.numel(), 32)), 32, 0, t.data<float>(),
               t.numel(), v);
}

__global__ void report_kernel(cuda::detail::IndexFault* fault) {
  fault->op = "lookup";
  fault->label = "index";
  fault->limit = 10;
  fault->value = 12;
  fault->set = cuda::detail::IndexFault::complete;
}

double first(const Tensor& t) {
  std::vector<double> v(static_cast<std::size_t>(t.numel()));
  t.to(kCpu).copy_to(v);
  return v[0];
}

Tensor ones(Device device = kGpu) { return Tensor::full({100}, 1, DType::f32, device); }

// A stream for the test, returned at the end.
struct Side {
  explicit Side(Device device = kGpu) : stream(Stream::take(device)) {}
  ~Side() {
    stream.synchronize();
    stream.give_back();
  }
  Stream stream;
};

// Runs the test case `name` of this program in a new process; returns its exit status.
int run_alone(const char* name, const char* variable, const char* value) {
  const pid_t child = fork();
  if (child == 0) {
    setenv(variable, value, 1);
    const std::string filter = message("--test-case={}", name);
    execl("/proc/self/exe", "test_emulator", filter.c_str(), nullptr);
    _exit(99);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("streams: work runs when the host waits") {
  const Tensor x = ones();
  cuda::synchronize();
  const std::uint64_t before = emu::stats.launches;
  increase(x, 1);
  CHECK(emu::stats.launches == before);
  Stream::current().synchronize();
  CHECK(emu::stats.launches == before + 1);
  CHECK(first(x) == 2);
  emu::control.run_at_once = true;
  increase(x, 1);
  emu::control.run_at_once = false;
  CHECK(emu::stats.launches == before + 2);
}

TEST_CASE("streams: a pinned buffer changed before its copy runs gives the new values") {
  auto* const pinned = static_cast<float*>(cuda::rt::allocate_pinned(400));
  std::fill(pinned, pinned + 100, 3.0f);
  const Tensor x = ones();
  cuda::rt::copy(x.raw(), pinned, 400, cuda::rt::CopyKind::to_device, Stream::current().handle());
  pinned[0] = 4;
  CHECK(first(x) == 4);
  cuda::rt::copy(pinned, x.raw(), 400, cuda::rt::CopyKind::to_host, Stream::current().handle());
  pinned[0] = 5;
  CHECK(pinned[0] == 5);
  cuda::synchronize();
  CHECK(pinned[0] == 4);
  cuda::rt::free_pinned(pinned);
  // Other host memory may be reused immediately.
  const Tensor host = Tensor::full({100}, 7, DType::f32);
  const Tensor copied = host.to(kGpu);
  host.fill_(8);
  CHECK(first(copied) == 7);
}

TEST_CASE("events: order streams") {
  const Side side;
  const Tensor x = ones();
  cuda::synchronize();
  {
    const StreamScope scope(side.stream);
    increase(x, 10);
  }
  CHECK(first(x) == 1);  // the read is not ordered after the other stream's kernel
  Event added;
  CHECK(added.done());
  added.record(side.stream);
  CHECK(!added.done());
  added.wait(Stream::current());
  CHECK(first(x) == 11);
  CHECK(added.done());
}

TEST_CASE("events: wait for the work before their record") {
  const Side side;
  const Tensor x = ones(), y = ones();
  cuda::synchronize();
  Event between(true), after(true);
  {
    const StreamScope scope(side.stream);
    increase(x, 1);
    between.record(side.stream);
    increase(y, 1);
    after.record(side.stream);
  }
  const std::int64_t syncs = cuda::host_syncs();
  between.synchronize();
  CHECK(cuda::host_syncs() == syncs + 1);
  CHECK(first(x) == 2);
  CHECK(first(y) == 1);
  CHECK(!after.done());
  after.synchronize();
  CHECK(first(y) == 2);
  CHECK(after.since(between) >= 0);
  Event moved = std::move(after);
  CHECK(moved.done());
  after = Event(true);
  CHECK(error_of([&] { (void)moved.since(after); }) ==
        "since: both events must have been recorded, got an earlier one that was not");
}

TEST_CASE("events: two streams wait for one another in turn") {
  const Side side;
  const Tensor x = ones();
  cuda::synchronize();
  for (int i = 0; i < 3; ++i) {
    increase(x, 1);
    Event here, there;
    here.record();
    here.wait(side.stream);
    const StreamScope scope(side.stream);
    increase(x, 10);
    there.record(side.stream);
    there.wait(Stream());
  }
  CHECK(first(x) == 34);
}

TEST_CASE("streams: each thread has a current stream") {
  const Side side;
  const StreamScope scope(side.stream);
  CHECK(Stream::current() == side.stream);
  Stream theirs = side.stream;
  std::thread([&] { theirs = Stream::current(); }).join();
  CHECK(theirs == Stream());
  {
    const StreamScope inner{Stream()};
    CHECK(Stream::current() == Stream());
  }
  CHECK(Stream::current() == side.stream);
  CHECK(Stream::current(kSecondGpu) == Stream(kSecondGpu));
}

TEST_CASE("streams: are taken, returned and reused up to a limit") {
  const Stream a = Stream::take();
  Stream b = Stream::take();
  CHECK(!(a == b));
  const int id = b.id();
  b.give_back();
  CHECK(Stream::take().id() == id);
  std::vector<Stream> all = {a, b};
  std::string text;
  while (text.empty()) {
    const std::string error = error_of([&] { all.push_back(Stream::take()); });
    if (error != "no error") text = error;
  }
  CHECK(text == "stream: at most 256 can exist, got a request for one more");
  for (Stream& s : all) s.give_back();
  CHECK(error_of([] { Stream().give_back(); }) ==
        "give_back: the stream must not be a default stream, got that of cuda:0");
}

TEST_CASE("host_syncs: counts only calls that wait") {
  const Tensor x = ones();
  const std::int64_t before = cuda::host_syncs();
  const Tensor y = ((x + x) * 3.0).to(DType::bf16).to(DType::f32);
  y.mul_(2);
  CHECK(cuda::host_syncs() == before);
  CHECK(first(y) == 12);
  CHECK(cuda::host_syncs() == before + 1);
  cuda::synchronize();
  Stream::current().synchronize();
  CHECK(cuda::host_syncs() == before + 3);
}

TEST_CASE("devices: two devices and copies between them") {
  const Tensor host = test::random({7, 9}, 1, DType::f32);
  const Tensor x = host.to(kGpu), y = host.to(kSecondGpu);
  CHECK((y + y).device() == kSecondGpu);
  CHECK(different_bits((y * 2.0).to(kCpu), host * 2.0) == "");
  // The copy waits for the source's kernels, and the target's stream waits for the copy.
  const Tensor moved = (x * 3.0).to(kSecondGpu);
  CHECK(moved.device() == kSecondGpu);
  const Tensor back = (moved + 1.0).to(kGpu);
  Stream(kGpu).synchronize();
  CHECK(different_bits(back.to(kCpu), host * 3.0 + 1.0) == "");
  CHECK(different_bits(x.transpose(0, 1).to(kSecondGpu).to(kCpu), host.transpose(0, 1)) == "");
}

TEST_CASE("devices: waiting for one does not wait for the other") {
  const Tensor x = ones(kGpu), y = ones(kSecondGpu);
  cuda::synchronize(kGpu);
  cuda::synchronize(kSecondGpu);
  const std::uint64_t before = emu::stats.launches;
  increase(x, 1);
  increase(y, 1);
  cuda::synchronize(kSecondGpu);
  CHECK(emu::stats.launches == before + 1);
  CHECK(first(y) == 2);
  CHECK(first(x) == 2);
}

TEST_CASE("devices: an invalid device is an error") {
  CHECK(error_of([] {
          (void)ones({Device::Kind::cuda, 2});
        }) == "device: the index of cuda:2 must be below the number of GPUs 2, got 2");
  CHECK(error_of([] {
          cuda::synchronize({Device::Kind::cuda, -1});
        }) == "device: the index of cuda:-1 must be below the number of GPUs 2, got -1");
  CHECK(error_of([] { (void)Stream(kCpu); }) == "device: must be a GPU, got cpu");
  CHECK(error_of([] { (void)(ones(kGpu) + ones(kSecondGpu)); }) ==
        "add: both operands must be on one device, got cuda:0 and cuda:1");
  CHECK(error_of([] { record_stream(Tensor::zeros({1}), Stream()); }) ==
        "record_stream: t must be on a GPU, got cpu");
}

TEST_CASE("devices: none") {
  if (!std::getenv("WEFT_EMU_DEVICES")) {
    CHECK(run_alone("devices: none", "WEFT_EMU_DEVICES", "0") == 0);
    return;
  }
  CHECK(cuda::device_count() == 0);
  CHECK(error_of([] { (void)ones(); }) == "device: cuda:0 cannot be used: WEFT_EMU_DEVICES is 0");
  CHECK(error_of([] { (void)Stream::current(); }) ==
        "device: cuda:0 cannot be used: WEFT_EMU_DEVICES is 0");
}

TEST_CASE("devices: the code that a card needs") {
  const std::string usual = emu::control.code;
  for (const int card : {80, 86, 87, 89, 90, 100, 103, 120, 121}) CHECK(emu::has_code(usual, card));
  CHECK(!emu::has_code(usual, 75));
  CHECK(emu::has_code("sm_80", 89));  // machine code fits the later cards of the family
  CHECK(!emu::has_code("sm_86", 80));
  CHECK(!emu::has_code("sm_80;sm_90a", 100));
  CHECK(!emu::has_code("sm_90a", 89));
  CHECK(!emu::has_code("sm_90a;compute_90a", 100));  // the PTX of an "a" is for that card only
  CHECK(emu::has_code("sm_100f", 103));
  CHECK(!emu::has_code("compute_100f", 120));
  CHECK(!emu::has_code("native", 90));
}

TEST_CASE("devices: a card without code for its kernels is one Error") {
  const emu::Control before = emu::control;
  emu::control.code = "sm_80;sm_90a";
  emu::control.capability = 120;
  CHECK(error_of([] { (void)ones(); }) ==
        "device: WEFT_CUDA_CODE must contain code for emulated GPU 0 (cuda:0, compute capability "
        "12.0), got sm_80;sm_90a; configure with -DWEFT_CUDA_CODE=sm_120 and build again (the "
        "driver: no kernel image is available for execution on the device)");
  emu::control.capability = 75;
  CHECK(error_of([] { (void)ones(kSecondGpu); }) ==
        "device: the compute capability must be at least 8.0, got emulated GPU 1 (cuda:1, compute "
        "capability 7.5)");
  emu::control = before;
  CHECK(first(ones()) == 1);
}

TEST_CASE("devices: an index out of range is reported when the host next waits") {
  cuda::launch(report_kernel, 1, 1, 0, cuda::detail::index_fault(kGpu));
  const char* const text = "lookup: index must be in [0, 10), got 12";
  CHECK(error_of([] { cuda::synchronize(); }) == text);
  CHECK(error_of([] { cuda::synchronize(); }) == "no error");
  // Each device has its own report: waiting for the other device does not throw.
  cuda::launch(report_kernel, 1, 1, 0, cuda::detail::index_fault(kGpu));
  Event seen;
  seen.record();
  seen.synchronize_unchecked();
  CHECK(error_of([] { cuda::synchronize(kSecondGpu); }) == "no error");
  CHECK(error_of([&] { seen.synchronize(); }) == text);
}

TEST_CASE("devices: another library may change the current device") {
  for (const Device device : {kGpu, kSecondGpu}) {
    const Tensor x = ones(device);
    Tensor sum = x + x;  // this device is the thread's current one now
    cuda::rt::set_device(1 - device.index);
    sum = sum + x;
    CHECK(first(sum) == 3);
  }
}

TEST_CASE("graphs: a stream's work is recorded and runs once per launch") {
  const Tensor x = ones();
  const auto stream = Stream::current().handle();
  cuda::synchronize();
  cuda::rt::begin_capture(stream);
  increase(x, 1);
  increase(x, 2);
  CHECK(error_of([&] { Stream::current().synchronize(); }) ==
        "graph: the host must not wait for a stream while it is captured");
  CHECK(error_of([&] { cuda::rt::begin_capture(stream); }) ==
        "graph: the stream must not be captured already");
  const auto graph = cuda::rt::end_capture(stream);
  CHECK(first(x) == 1);
  cuda::rt::launch_graph(graph, stream);
  cuda::rt::launch_graph(graph, stream);
  cuda::rt::destroy_graph(graph);
  CHECK(first(x) == 7);
}

TEST_CASE("devices: a GPU without FP8 is refused with one line") {
  const int before = emu::control.capability;
  emu::control.capability = 80;
  CHECK(error_of([] { fp8::check_device(kGpu); }) ==
        "fp8: needs a GPU of compute capability 8.9 or newer, got 8.0 of cuda:0");
  emu::control.capability = before;
  CHECK(error_of([] { fp8::check_device(kGpu); }) == "no error");
  CHECK(error_of([] { fp8::check_device(kCpu); }) == "no error");
}

TEST_CASE("devices: a host that touches device memory crashes") {
  const Tensor x = ones();
  cuda::synchronize();
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);
    if (!std::freopen("/dev/null", "w", stderr)) _exit(2);
    _exit(*const_cast<volatile float*>(x.data<float>()) > 0 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV));
}

}  // namespace weft::runtime_test
