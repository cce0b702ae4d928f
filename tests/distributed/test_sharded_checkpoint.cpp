#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/error.h"
#include "weft/distributed/checkpoint.h"
#include "weft/io/file.h"
#include "weft/tests/power_cut.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::distributed::sharded_checkpoint_test {
namespace {

using test::error_of;

// Rank r's rows of a whole (8, 2) that holds value, value + 1, ...; its state is sharded by
// elements.
struct Held {
  SlicedTensors model, optimizer;
  Held(const World& w, double value) {
    const std::int64_t rows = 8 / w.size(), first = rows * w.rank();
    const nn::ShardSpec part{{8, 2}, {nn::ShardSpec::Cut{0, {{first, first + rows}}}}};
    const Tensor all = Tensor::arange(value, value + 16);
    model["w"] = {all.view({8, 2}).narrow(0, first, rows).contiguous(), ShardSlice::of(part)};
    optimizer["w.m"] = {all.narrow(0, 2 * first, 2 * rows).contiguous(),
                        {nn::ShardSpec{{8, 2}, {}}, 2 * first, 2 * (first + rows)}};
    if (w.rank() == 0) model["norm"] = {Tensor::full({3}, value), ShardSlice::of({3})};
  }
};

double value_of(const io::Checkpoint& c) {
  const ShardFiles model(c.shards("model")), optimizer(c.shards("optim"));
  const double value = model.whole("norm").select(0, 0).item();
  const Tensor want = Tensor::arange(value, value + 16).view({8, 2});
  CHECK(test::different_bits(model.whole("w"), want) == "");
  CHECK(test::different_bits(optimizer.whole("w.m"), want) == "");
  return value;
}

}  // namespace

TEST_CASE("sharded checkpoint: any number of ranks can load it") {
  const test::TempFolder out;
  for (const int writers : {1, 2, 4, 8}) {
    run_ranks(writers, [&](World& w) {
      CHECK((writers == 1) == !find_checkpoint(w, out.path()));
      const Held held(w, writers);
      save_checkpoint(w, out.path(), writers, held.model, held.optimizer, "{}", 1);
    });
    CHECK(io::list_directory(out / "checkpoints") ==
          std::vector<std::string>{"latest.json", "step_0000000" + std::to_string(writers)});
    for (const int readers : {1, 4})
      run_ranks(readers, [&](World& w) {
        const auto found = find_checkpoint(w, out.path());
        REQUIRE(found);
        CHECK(found->step == writers);
        CHECK(found->shards("model").size() == static_cast<std::size_t>(writers));
        CHECK(value_of(*found) == writers);
        const Held want(w, writers);
        const SlicedTensor& rows = want.model.at("w");
        const Tensor got = Tensor::empty(rows.values.shape());
        ShardFiles(found->shards("model")).read_into("w", rows.slice, got);
        CHECK(test::different_bits(got, rows.values) == "");
      });
  }
}

TEST_CASE("sharded checkpoint: a rank with an empty shard saves and loads it") {
  const test::TempFolder out;
  const Tensor whole = Tensor::arange(0, 10).view({5, 2});
  // Five rows in shards of equal size until they run out: 2, 2, 1, 0 for four ranks.
  const auto cut = [&](const World& w) {
    const std::int64_t size = (5 + w.size() - 1) / w.size();
    const std::int64_t first = std::min<std::int64_t>(5, size * w.rank());
    const std::int64_t last = std::min<std::int64_t>(5, first + size);
    const nn::ShardSpec part{{5, 2}, {nn::ShardSpec::Cut{0, {{first, last}}}}};
    return SlicedTensor{whole.narrow(0, first, last - first).contiguous(), ShardSlice::of(part)};
  };
  for (const int writers : {4, 8, 2}) {
    run_ranks(writers, [&](World& w) {
      save_checkpoint(w, out.path(), writers, {{"w", cut(w)}}, {}, "{}", 1);
    });
    for (const int readers : {1, 4, 8})
      run_ranks(readers, [&](World& w) {
        const SlicedTensor own = cut(w);
        const Tensor got = Tensor::empty(own.values.shape());
        ShardFiles(find_checkpoint(w, out.path())->shards("model")).read_into("w", own.slice, got);
        CHECK(test::different_bits(got, own.values) == "");
      });
  }
}

TEST_CASE("sharded checkpoint: in the background, the values are those when the save began") {
  const test::TempFolder out;
  io::testing::slow_writes(20e3);
  for (const int ranks : {1, 2, 4}) {
    std::atomic<int> early{0};
    run_ranks(ranks, [&](World& w) {
      const Held held(w, ranks);
      CheckpointSave save(
          w, out.path(),
          {.step = ranks, .model = sources_of(held.model), .optimizer = sources_of(held.optimizer)},
          {.background = true});
      for (const SlicedTensors& tensors : {held.model, held.optimizer})
        for (const auto& [name, t] : tensors) t.values.fill_(-1);
      while (!save.advance()) ++early;  // as training does between its steps
    });
    CHECK(early > 0);
    CHECK(value_of(*io::find_checkpoint(out.path())) == ranks);
  }
  io::testing::slow_writes(0);
}

TEST_CASE("sharded checkpoint: without memory for copies the values are written at once") {
  const test::TempFolder out;
  for (const bool is_bad_alloc : {false, true}) {
    run_ranks(2, [&](World& w) {
      const Held held(w, is_bad_alloc);
      CheckpointPart part{.step = 1 + is_bad_alloc,
                          .model = sources_of(held.model),
                          .optimizer = sources_of(held.optimizer)};
      int reads = 0, refused = 0;
      const auto count = [&](TensorSource& source, bool refuses) {
        source.read = [&, refuses, read = source.read] {
          if (refuses && ++refused == 1) {
            if (is_bad_alloc) throw std::bad_alloc();
            throw Error("no room", Fault::system);
          }
          ++reads;
          return read();
        };
      };
      // The first tensor is copied before the last one is refused: it is read again.
      count(part.model.at("w").values, false);
      count(part.optimizer.at("w.m").values, true);
      CheckpointSave save(w, out.path(), std::move(part), {.background = true});
      CHECK(reads == 3);
      for (const SlicedTensors& tensors : {held.model, held.optimizer})
        for (const auto& [name, t] : tensors) t.values.fill_(-1);
      save.finish();
    });
    CHECK(value_of(*io::find_checkpoint(out.path())) == is_bad_alloc);
  }
}

TEST_CASE("sharded checkpoint: a copy takes the block that holds its tensor") {
  const SlicedTensors tensors{{"a", {Tensor::zeros({257}), ShardSlice::of({257})}},
                              {"b", {Tensor::zeros({2}), ShardSlice::of({2})}}};
  CHECK(bytes_of_copies(sources_of(tensors)) == 1152 + 64);
}

TEST_CASE("sharded checkpoint: a value that cannot be read fails the save on all ranks") {
  const test::TempFolder out;
  std::vector<std::string> texts(2);
  run_ranks(2, [&](World& w) {
    const Held held(w, 1);
    CheckpointPart part{.step = 1, .model = sources_of(held.model)};
    if (w.rank() == 1)
      part.model.at("w").values.read = []() -> Tensor { throw Error("gone", Fault::system); };
    texts[static_cast<std::size_t>(w.rank())] = error_of(
        [&] { CheckpointSave(w, out.path(), std::move(part), {.background = true}).finish(); });
  });
  for (const std::string& text : texts) CHECK(text == "save_checkpoint: rank 1: gone");
  CHECK(!io::find_checkpoint(out.path()));
}

TEST_CASE(
    "sharded checkpoint: one rank that unwinds completes a save, several leave the last one") {
  const test::TempFolder out;
  for (const int ranks : {1, 2}) {
    const std::string told = error_of([&] {
      run_ranks(ranks, [&](World& w) {
        const Held held(w, 7 + ranks);
        const CheckpointSave save(w, out.path(),
                                  {.step = ranks,
                                   .model = sources_of(held.model),
                                   .optimizer = sources_of(held.optimizer)},
                                  {.background = true});
        if (w.rank() == 0) throw Error("unwinds");
        w.all().barrier().wait();
      });
    });
    CHECK(told == "rank 0: unwinds");
    CHECK(value_of(*io::find_checkpoint(out.path())) == 8);
  }
}

TEST_CASE("sharded checkpoint: a full disk on one rank keeps the previous checkpoint") {
  // Which rank's file does not fit depends on the order of the writes. All ranks get the error.
  int refused = 0;
  for (std::int64_t room = 0;; room += 83) {
    const bool background = refused % 2 == 0;
    const test::TempFolder out;
    const auto save = [&](std::int64_t step) {
      std::vector<std::string> texts(3);
      run_ranks(2, [&](World& w) {
        const Held held(w, static_cast<double>(step));
        texts[static_cast<std::size_t>(w.rank())] = error_of([&] {
          CheckpointSave own(w, out.path(),
                             {.step = step,
                              .model = sources_of(held.model),
                              .optimizer = sources_of(held.optimizer)},
                             {.background = background});
          if (background)
            while (!own.advance()) continue;
          else
            own.finish();
        });
      });
      return texts;
    };
    CHECK(save(1)[0] == "no error");
    io::testing::fail_writes_after(room);
    const std::vector<std::string> texts = save(2);
    io::testing::fail_writes_after(-1);
    if (texts[0] == "no error") {
      CHECK(texts[1] == "no error");
      break;
    }
    ++refused;
    CAPTURE(texts[0]);
    CHECK(texts[0].ends_with("No space left on device"));
    CHECK(texts[1] == texts[0]);
    const auto found = io::find_checkpoint(out.path());
    REQUIRE(found);
    CHECK(value_of(*found) == 1);
    for (const std::string& name : io::list_directory(out / "checkpoints"))
      CHECK_FALSE(name.ends_with(".tmp"));
    CHECK(save(3)[0] == "no error");
    CHECK(value_of(*io::find_checkpoint(out.path())) == 3);
  }
  CHECK(refused > 5);
}

TEST_CASE("sharded checkpoint: all ranks report a damaged file of any rank") {
  const test::TempFolder out;
  const std::string folder = out / "checkpoints/step_00000001/";
  for (const char* file : {"model-r000.safetensors", "optim-r000.safetensors",
                           "model-r001.safetensors", "optim-r001.safetensors", "state.json"}) {
    run_ranks(2, [&](World& w) {
      const Held held(w, 1);
      save_checkpoint(w, out.path(), 1, held.model, held.optimizer, "{}");
    });
    io::write_file(folder + file, io::read_file(folder + file) + " ");
    for (const int readers : {1, 2, 3, 8})
      run_ranks(readers, [&](World& w) {
        const std::string text = error_of([&] { find_checkpoint(w, out.path()); });
        CHECK(text.starts_with("checkpoint: '" + folder + file + "' must have "));
      });
  }
}

TEST_CASE("sharded checkpoint: ranks divide the files to verify") {
  const test::TempFolder out;
  run_ranks(4, [&](World& w) {
    const Held held(w, 1);
    save_checkpoint(w, out.path(), 1, held.model, held.optimizer, "{}");
  });
  const std::string folder = out / "checkpoints/step_00000001";
  const std::string manifest = io::read_file(folder + "/manifest.json");
  for (const std::string& name : io::open_checkpoint(folder).files) {
    const std::string whole = io::read_file(folder + "/" + name);
    io::write_file(folder + "/" + name, whole + " ");
    int noticed = 0;
    for (int rank = 0; rank < 3; ++rank)
      noticed += error_of([&] { io::verify_checkpoint(folder, manifest, rank, 3); }) != "no error";
    CHECK(noticed == 1);
    io::write_file(folder + "/" + name, whole);
  }
}

TEST_CASE("sharded checkpoint: any number of ranks finds the checkpoint that one rank finds") {
  const test::TempFolder out;
  set_log_handler([](std::string_view) {});  // each fallback logs one line
  run_ranks(2, [&](World& w) {
    for (const int step : {1, 2, 3}) {
      const Held held(w, step);
      save_checkpoint(w, out.path(), step, held.model, held.optimizer, "{}");
    }
  });
  const auto all_find = [&](std::int64_t step) {
    CHECK(io::find_checkpoint(out.path())->step == step);
    for (const int readers : {1, 2, 3})
      run_ranks(readers, [&](World& w) {
        const auto found = find_checkpoint(w, out.path());
        REQUIRE(found);
        CHECK(found->step == step);
        CHECK(value_of(*found) == static_cast<double>(step));
      });
  };
  // latest.json holds the same data as this manifest, which is not needed.
  io::write_file(out / "checkpoints/step_00000003/manifest.json", "{");
  all_find(3);
  io::write_file(out / "checkpoints/step_00000003/optim-r001.safetensors", "x");
  all_find(2);
  io::write_file(out / "checkpoints/step_00000002/manifest.json", "{");
  all_find(1);
  set_log_handler(nullptr);
}

TEST_CASE("sharded checkpoint: a read error on one rank is not damage") {
  const test::TempFolder out;
  run_ranks(2, [&](World& w) {
    for (const int step : {1, 2}) {
      const Held held(w, step);
      save_checkpoint(w, out.path(), step, held.model, held.optimizer, "{}");
    }
  });
  for (const int after : {0, 1, 2, 4}) {
    test::fail_reads(EIO, after);
    std::vector<std::string> texts(3);
    run_ranks(3, [&](World& w) {
      texts[static_cast<std::size_t>(w.rank())] = error_of([&] { find_checkpoint(w, out.path()); });
    });
    test::fail_reads(0);
    CHECK(texts[0].starts_with("read: cannot read '" + out.path()));
    CHECK(texts[0].ends_with("Input/output error"));
    CHECK(texts[1] == texts[0]);
    CHECK(texts[2] == texts[0]);
  }
  CHECK(io::find_checkpoint(out.path())->step == 2);
}

TEST_CASE("sharded checkpoint: a folder that cannot be created is an error") {
  const test::TempFolder out;
  io::write_file(out / "file", "");
  run_ranks(2, [&](World& w) {
    const Held held(w, 1);
    const std::string text =
        error_of([&] { save_checkpoint(w, out / "file", 1, held.model, held.optimizer, "{}"); });
    CHECK(text == "write: cannot create folder '" + (out / "file") + "': Not a directory");
    CHECK(error_of([&] {
            save_checkpoint(w, out.path(), 1, held.model, held.optimizer, "{}", -1);
          }) == "save_checkpoint: keep must be at least 0, got -1");
  });
}

}  // namespace weft::distributed::sharded_checkpoint_test
