#include <doctest/doctest.h>

#include "weft/io/file.h"
#include "weft/io/flame.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::flame_test {
namespace {

using test::error_of;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

Profiler::Entry entry(const char* phase, std::vector<std::string> scopes, const char* op,
                      const char* kernel, double seconds) {
  return {phase, std::move(scopes), op, kernel, {.calls = 1, .seconds = seconds}};
}

}  // namespace

TEST_CASE("flame: a box for each place, as wide as its share") {
  const test::TempFolder folder;
  const std::string path = folder.path() + "/profile.svg";
  io::write_flame_svg({entry("forward", {"attn"}, "linear", "gemm", 0.3),
                       entry("forward", {"attn"}, "linear", "copy", 0.1),
                       entry("backward", {}, "", "gemm", 0.6), entry("rare", {}, "", "fill", 1e-9)},
                      path, "a <title> & more");
  const std::string svg = io::read_file(path);
  CHECK(svg.find("a &lt;title&gt; &amp; more") != std::string::npos);
  // forward, attn, linear, gemm, copy; backward, gemm. A box below a third of a pixel is left out.
  CHECK(count(svg, "<title>") == 7);
  CHECK(svg.find("<title>forward: 2 calls, 400.000 ms, 40.0 %</title>") != std::string::npos);
  CHECK(svg.find("<title>gemm: 1 calls, 600.000 ms, 60.0 %</title>") != std::string::npos);
  CHECK(svg.find(R"(width="599.5")") != std::string::npos);
  CHECK(count(svg, "<g>") == count(svg, "</g>"));
}

TEST_CASE("flame: a name that does not fit is cut between letters") {
  const test::TempFolder folder;
  const std::string path = folder.path() + "/profile.svg";
  // Of 30 letters of three bytes, a box of a tenth of the width has room for 14 bytes.
  std::string name;
  for (int i = 0; i < 30; ++i) name += "\u5c42";
  io::write_flame_svg({entry("p", {}, "", name.c_str(), 0.1), entry("p", {}, "", "rest", 0.9)},
                      path, "names");
  std::string beginning;
  for (int i = 0; i < 4; ++i) beginning += "\u5c42";
  CHECK(count(io::read_file(path), ">" + beginning + "</text>") == 1);
}

TEST_CASE("flame: an empty profile, and a folder that is missing") {
  const test::TempFolder folder;
  io::write_flame_svg({}, folder.path() + "/empty.svg", "empty");
  CHECK(count(io::read_file(folder.path() + "/empty.svg"), "<svg") == 1);
  CHECK(error_of([&] { io::write_flame_svg({}, folder.path() + "/no/such.svg", "x"); }) != "");
}

}  // namespace weft::flame_test
