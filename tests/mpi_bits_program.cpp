// Runs every collective over odd, uneven, empty and large shapes. Each rank writes checksums of the
// results to FOLDER/RANK, so that tests/cli/test_mpi.py can compare ranks as threads with ranks as
// processes.
// usage: mpi_bits_program FOLDER [RANKS]     RANKS: number of threads; without it, under mpirun
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/distributed/message_world.h"
#include "weft/io/crc32c.h"

namespace {

using namespace weft;
using namespace weft::distributed;

// Values whose sum depends on the order of the additions.
Tensor values(const Shape& shape, DType dtype, int rank, int salt) {
  const Tensor x = Tensor::empty(shape, DType::f64);
  std::uint64_t state = static_cast<std::uint64_t>(rank * 1000 + salt) * 2654435761u + 1;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const double u = static_cast<double>(state >> 40) / (1 << 24);
    x.data<double>()[i] = dtype == DType::u8                           ? static_cast<int>(u * 50)
                          : dtype == DType::i32 || dtype == DType::i64 ? static_cast<int>(u * 1e6)
                                                                       : (u - 0.5) * (1 + 1e4 * u);
  }
  return x.to(dtype);
}

void run(World& w, std::string& out) {
  const auto note = [&](const std::string& what, const Tensor& t) {
    const std::size_t bytes = static_cast<std::size_t>(t.numel()) * size_of(t.dtype());
    out += message("{} {} {} {}\n", what, t.dtype(), t.shape(),
                   io::crc32c(t.numel() ? t.raw() : nullptr, bytes));
  };
  const auto over = [&](ProcessGroup& g) {
    const int n = g.size(), me = g.rank();
    for (const DType dtype :
         {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8}) {
      for (const std::int64_t rows : {0, 1, 3, 70, 1000}) {
        for (const Reduce reduce : {Reduce::sum, Reduce::max, Reduce::min}) {
          const Tensor x = values({rows, 3}, dtype, w.rank(), 1);
          g.all_reduce(x, reduce).wait();
          note(g.name() + " all_reduce", x);
        }
        Rows uneven;  // 0, rows, 2 rows, ...
        std::int64_t all = 0;
        for (int r = 0; r < n; ++r) {
          uneven.push_back(rows * r);
          all += rows * r;
        }
        const Tensor gathered = Tensor::empty({all, 3}, dtype);
        g.all_gather(gathered, values({rows * me, 3}, dtype, w.rank(), 2), uneven).wait();
        note(g.name() + " all_gather", gathered);
        const Tensor part = Tensor::empty({rows * me, 3}, dtype);
        g.reduce_scatter(part, values({all, 3}, dtype, w.rank(), 3), uneven).wait();
        note(g.name() + " reduce_scatter", part);
        // Rank a sends rank b rows * ((a + b) % 3) rows.
        Rows in_rows, out_rows;
        std::int64_t sent = 0;
        for (int r = 0; r < n; ++r) {
          in_rows.push_back(rows * ((me + r) % 3));
          out_rows.push_back(rows * ((me + r) % 3));
          sent += in_rows.back();
        }
        const Tensor came = Tensor::empty({sent, 3}, dtype);
        g.all_to_all(came, values({sent, 3}, dtype, w.rank(), 4), out_rows, in_rows).wait();
        note(g.name() + " all_to_all", came);
        const Tensor x = values({rows, 3}, dtype, w.rank(), 5);
        g.broadcast(x, n - 1).wait();
        note(g.name() + " broadcast", x);
        const Tensor y = Tensor::empty({rows, 3}, dtype);
        g.exchange(y, (me + n - 1) % n, values({rows, 3}, dtype, w.rank(), 6), (me + 1) % n).wait();
        note(g.name() + " exchange", y);
      }
    }
    // Each rank's share takes more than one chunk, and several collectives are in flight at once.
    const Tensor big = values({1500001}, DType::f32, w.rank(), 7);
    const Tensor half = values({700001}, DType::bf16, w.rank(), 8);
    Work first = g.all_reduce(big), second = g.all_reduce(half);
    second.wait();
    first.wait();
    note(g.name() + " large", big);
    note(g.name() + " large", half);
    if (n > 1 && me < 2) {
      const Tensor x = values({5}, DType::f32, w.rank(), 9);
      if (me == 0) g.send(x, 1).wait();
      if (me == 1) g.receive(x, 0).wait();
      note(g.name() + " send", x);
    }
  };
  over(w.all());
  std::vector<int> even, backwards;
  for (int r = 0; r < w.size(); r += 2) even.push_back(r);
  for (int r = w.size() - 1; r >= 0; --r) backwards.push_back(r);
  if (const auto g = w.group("even", even)) over(*g);
  over(*w.group("backwards", backwards));
}

// "" when warm collectives allocate nothing and their staging stays within its limit.
std::string memory_used(World& w) {
  const Tensor big = values({1500001}, DType::f32, w.rank(), 10);
  for (int i = 0; i < 2; ++i) w.all().all_reduce(big, Reduce::max).wait();
  const std::int64_t before = memory_stats().system_allocs;
  for (int i = 0; i < 10; ++i) w.all().all_reduce(big, Reduce::max).wait();
  const MemoryStats now = memory_stats();
  const std::int64_t staging = now.live_by_category[static_cast<int>(Category::communication)];
  if (now.system_allocs != before)
    return message("{} requests to the system", now.system_allocs - before);
  if (staging <= 0 || staging > (8 << 20)) return message("{} bytes of staging", staging);
  return "";
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string folder = argc > 1 ? argv[1] : ".";
  const auto write = [&](World& w) {
    std::string out;
    run(w, out);
    std::ofstream(folder + "/" + std::to_string(w.rank())) << out;
  };
  if (argc > 2) {
    run_ranks(std::atoi(argv[2]), write);
  } else {
    const auto world = world_of_launch({.timeout_s = 60});
    write(*world);
    const std::int64_t counted = world->stats().bytes_sent, moved = bytes_moved(*world);
    check_system(counted == moved, "{} bytes counted, {} moved", counted, moved);
    const std::string why = memory_used(*world);
    check_system(why.empty(), "{}", why);
  }
  return 0;
} catch (const weft::Error& e) {
  std::fprintf(stderr, "error: %s\n", e.what());
  return static_cast<int>(e.fault());
}
