// The picture of live bytes over a step.
#include <doctest/doctest.h>

#include "weft/io/file.h"
#include "weft/io/memory_plot.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::memory_plot_test {

TEST_CASE("memory plot: layers, marks and the peak, also of a long course") {
  std::vector<LiveBytes> course(5000);
  for (std::size_t i = 0; i < course.size(); ++i) {
    course[i].by_category[static_cast<int>(Category::parameter)] = 4'000'000;
    course[i].by_category[static_cast<int>(Category::activation)] =
        static_cast<std::int64_t>(i < 2500 ? i : 5000 - i) * 1000;
  }
  course[2711].by_category[static_cast<int>(Category::gradient)] = 3'000'000;  // of one moment
  const test::TempFolder folder;
  const std::string path = folder / "memory.svg";
  io::write_memory_svg(course, {{"forward", 0}, {"backward", 2500}, {"close", 2501}}, path,
                       "A <small> step & more");
  const std::string svg = io::read_file(path);
  CHECK(svg.find("A &lt;small> step &amp; more") != svg.npos);
  CHECK(svg.find(">peak 9.289 MB<") != svg.npos);
  CHECK(svg.find(">forward<") != svg.npos);
  CHECK(svg.find(">backward<") != svg.npos);
  CHECK(svg.find(">close<") == svg.npos);  // there is no room for the label
  CHECK(svg.find(">4999 allocations and frees of a step<") != svg.npos);
  std::size_t areas = 0;
  for (std::size_t at = svg.find("<polygon"); at != svg.npos; at = svg.find("<polygon", at + 1))
    ++areas;
  CHECK(areas == 3);  // optimizer, communication and other have none
  CHECK(svg.size() < 100'000);
}

TEST_CASE("memory plot: a single moment, and none") {
  const test::TempFolder folder;
  io::write_memory_svg({LiveBytes{}}, {}, folder / "one.svg", "one");
  CHECK(io::read_file(folder / "one.svg").find("0 allocations") != std::string::npos);
  CHECK(test::error_of([&] { io::write_memory_svg({}, {}, folder / "none.svg", "none"); }) ==
        "memory plot: the course must have a moment, got none");
}

}  // namespace weft::memory_plot_test
