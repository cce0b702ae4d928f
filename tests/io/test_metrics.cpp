#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "weft/core/error.h"
#include "weft/io/file.h"
#include "weft/io/metrics.h"
#include "weft/io/plot.h"
#include "weft/tests/power_cut.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::metrics_test {
using io::Json;
using test::error_of;

namespace {

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

std::string svg_of(const std::string& metrics) {
  const test::TempFolder folder;
  io::write_file(folder / "m", metrics);
  io::write_loss_svg(folder / "m", folder / "loss.svg", "a < b & c");
  return io::read_file(folder / "loss.svg");
}

}  // namespace

TEST_CASE("metrics: lines keep order and precision and write non-finite numbers as null") {
  const test::TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  const io::MetricsWriter writer(path);
  writer.write(Json().set("step", 1).set("loss", 1.0 / 3).set("a", std::nan("")));
  CHECK(io::read_file(path) == "{\"step\":1,\"loss\":0.3333333333333333,\"a\":null}\n");
  writer.write(Json().set("step", std::int64_t{1} << 53).set("loss", -INFINITY));
  io::append_file(path, "{\"step\":3,\"lo");  // a writer killed in the middle of a line
  const std::vector<Json> lines = io::read_metrics(path);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].at("loss").as_double() == 1.0 / 3);
  CHECK(lines[1].at("step").as_int() == std::int64_t{1} << 53);
  CHECK(lines[1].at("loss").is_null());
}

TEST_CASE("metrics: a resumed run drops the lines after its step") {
  const test::TempFolder folder;
  const std::string path = folder / "m";
  io::truncate_to_step(path, 3);
  CHECK_FALSE(io::exists(path));
  io::write_file(path, "{\"step\":1}\n{\"step\":3,\"x\": 1e0}\n{\"step\":4}\n{\"note\":1}\n{\"st");
  io::truncate_to_step(path, 3);
  CHECK(io::read_file(path) == "{\"step\":1}\n{\"step\":3,\"x\": 1e0}\n{\"note\":1}\n");
  io::truncate_to_step(path, 0);
  CHECK(io::read_file(path) == "{\"note\":1}\n");
}

TEST_CASE("metrics: a resumed run keeps the readable lines and a copy of the damaged file") {
  const test::TempFolder folder;
  const std::string path = folder / "m";
  const std::pair<std::string, std::string> damages[] = {
      {std::string(3, '\0'), "unexpected character at byte 0"},
      {"{\"step\":2,\"lo{\"step\":2}", "expected ':' at byte 15"},
      {"{\"a\":\"\xff\"}", "invalid UTF-8 at byte 6"},
      {"7", "expected a JSON object"}};
  for (const auto& [line, reason] : damages) {
    const test::TempFolder one;
    const std::string m = one / "m", text = "{\"step\":1}\n" + line + "\n{\"step\":3}\n";
    static std::string logged;
    logged.clear();
    set_log_handler([](std::string_view said) { logged += said; });
    io::write_file(m, text);
    io::truncate_to_step(m, 3);
    set_log_handler(nullptr);
    CHECK(io::read_file(m) == "{\"step\":1}\n{\"step\":3}\n");
    CHECK(io::read_file(m + ".damaged") == text);
    CHECK(logged == "metrics: '" + m + "' line 2: " + reason +
                        "; 1 damaged line dropped, the original file is '" + m + ".damaged'");
    // A second time: the first copy stays.
    io::write_file(m, "x\n");
    io::truncate_to_step(m, 3);
    CHECK(io::read_file(m + ".damaged") == text);
    CHECK(io::read_file(m + ".damaged.2") == "x\n");
  }
  // Removing a blank line loses nothing.
  io::write_file(path, "{\"step\":1}\n\n \n{\"step\":2}\n");
  CHECK(io::read_metrics(path).size() == 2);
  io::truncate_to_step(path, 2);
  CHECK(io::read_file(path) == "{\"step\":1}\n{\"step\":2}\n");
  CHECK(io::list_directory(folder.path()) == std::vector<std::string>{"m"});
}

TEST_CASE("metrics: a plot omits unreadable lines") {
  CHECK(svg_of("{\"step\":5,\"loss\":2.5}\nx\n") == svg_of("{\"step\":5,\"loss\":2.5}\n"));
}

TEST_CASE("power cut: synced lines are durable") {
  const test::TempFolder folder;
  test::PowerCut disk(folder.path());
  const io::MetricsWriter writer(folder / "m");
  writer.sync();
  CHECK_FALSE(io::exists(folder / "m"));
  writer.write(Json().set("step", 1));
  writer.sync();
  writer.write(Json().set("step", 2));
  disk.cut();
  CHECK(io::read_file(folder / "m") == "{\"step\":1}\n");
}

TEST_CASE("metrics: damaged lines are reported") {
  const test::TempFolder folder;
  const std::string path = folder / "m";
  io::write_file(path, "{\"step\":1}\nx\n");
  CHECK(error_of([&] { io::read_metrics(path); }) ==
        "metrics: '" + path + "' line 2: unexpected character at byte 0");
  io::write_file(path, "[1]\n");
  CHECK(error_of([&] { io::read_metrics(path); }) ==
        "metrics: '" + path + "' line 1: expected a JSON object");
}

TEST_CASE("metrics: the plot has a line per run of numbers, ticks and a legend") {
  const std::string none = svg_of("");
  CHECK(none.find(">no points yet</text>") != std::string::npos);
  CHECK(none.find(">a &lt; b &amp; c</text>") != std::string::npos);
  CHECK(count(none, "<polyline") == 0);

  const std::string one = svg_of("{\"step\":5,\"loss\":2.5}\n");
  CHECK(count(one, "<circle") == 1);
  CHECK(count(one, "<polyline") == 0);
  CHECK(one.find("nan") == std::string::npos);
  CHECK(one.find("inf") == std::string::npos);

  std::string lines;
  for (int i = 1; i <= 100; ++i)
    lines += "{\"step\":" + std::to_string(i) +
             ",\"loss\":" + (i == 50 ? "null" : std::to_string(4.0 / i)) +
             (i % 25 == 0 ? ",\"val_loss\":2.5" : "") + "}\n";
  const std::string svg = svg_of(lines);
  CHECK(count(svg, "<polyline") == 5);  // the null splits the loss curve and the smoothed one
  CHECK(count(svg, "stroke=\"#c3dbf0\"") == 2);
  CHECK(count(svg, "<circle") == 4);
  CHECK(svg.find(">training, smoothed: best 0.") != std::string::npos);
  CHECK(svg.find(">validation: best 2.5 at step 25</text>") != std::string::npos);
  CHECK(svg.find(">step</text>") != std::string::npos);
  CHECK(svg.find(">100</text>") != std::string::npos);
  // The axes range over 0 .. 100 and 0 .. 4: step 1 is a hundredth of the width, loss 4 the top
  // line.
  CHECK(svg.find("points=\"79.64,56 ") != std::string::npos);
}

TEST_CASE("metrics: a short run is not smoothed, and its best values are named") {
  std::string lines;
  for (int i = 1; i <= 10; ++i)
    lines += "{\"step\":" + std::to_string(i) + ",\"loss\":" + std::to_string(i == 7 ? 1 : 3) +
             (i % 5 == 0 ? ",\"val_loss\":" + std::to_string(i == 5 ? 2.25 : 2.5) : "") + "}\n";
  const std::string svg = svg_of(lines);
  CHECK(count(svg, "<polyline") == 2);
  CHECK(svg.find(">training: best 1 at step 7</text>") != std::string::npos);
  CHECK(svg.find(">validation: best 2.25 at step 5</text>") != std::string::npos);
}

TEST_CASE("metrics: steps have a log axis if the loss falls in the first tenth of them") {
  const auto run = [](double fast) {
    std::string lines;
    for (int i = 1; i <= 3000; ++i) {
      const double loss = fast > 0 ? 1 + 4 * std::exp(-i / fast) : 5 - i / 1000.0;
      lines += "{\"step\":" + std::to_string(i) + ",\"loss\":" + std::to_string(loss) + "}\n";
    }
    return svg_of(lines);
  };
  const std::string steep = run(60);
  CHECK(steep.find(">step (log)</text>") != std::string::npos);
  CHECK(steep.find("points=\"72,") != std::string::npos);  // step 1 is at the left end
  CHECK(steep.find(">200</text>") != std::string::npos);
  CHECK(steep.find("nan") == std::string::npos);
  CHECK(run(0).find(">step</text>") != std::string::npos);
  CHECK(run(2000).find(">step</text>") != std::string::npos);
}

TEST_CASE("metrics: a long run is thinned and keeps its spike") {
  std::string lines;
  for (int i = 1; i <= 20000; ++i)
    lines += "{\"step\":" + std::to_string(i) + ",\"loss\":" + (i == 7777 ? "10" : "1") + "}\n";
  const std::string svg = svg_of(lines);
  CHECK(svg.size() < 60000);
  CHECK(svg.find(",56 ") != std::string::npos);  // 10 is at the top of the plot
}

}  // namespace weft::metrics_test
