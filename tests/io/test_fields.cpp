#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "weft/io/json_fields.h"
#include "weft/tests/support.h"

namespace weft::fields_test {
namespace {

using test::error_of;

enum class Colour : std::uint8_t { red, green };
constexpr Word<Colour> kColours[] = {{"red", Colour::red}, {"green", Colour::green}};

struct Settings {
  std::int64_t count = 3, deep = 2;
  double rate = 0.5;
  bool on = false;
  std::optional<bool> maybe;
  std::string text = "a";
  Colour colour = Colour::red;

  template <class V>
  void fields(V& v) {
    v.group("All");
    v("the-count", count, "how many", between(1, 9).of_first_model());
    v("deep", deep, "in checkpoints under another name", at_least(0).of_model("depth"));
    v("rate", rate, "not in checkpoints", fraction());
    v("on", on, "", any().of_model());
    v("maybe", maybe, "", any().of_model());
    v("text", text, "", any().of_model());
    v("colour", colour, kColours, "", any().of_model());
  }
};

std::string refusal(void (*change)(Settings&)) {
  Settings s;
  change(s);
  return error_of([&] { check_fields("paint", s); });
}

Settings read(const char* json) {
  Settings s;
  io::fields_from_json(io::Json::parse(json), "state.json", s);
  return s;
}

}  // namespace

TEST_CASE("fields: numbers are checked against their rules") {
  CHECK(refusal([](Settings&) {}) == "no error");
  CHECK(refusal([](Settings& s) { s.count = 0; }) == "paint: the_count must be at least 1, got 0");
  CHECK(refusal([](Settings& s) { s.count = 10; }) == "paint: the_count must be at most 9, got 10");
  CHECK(refusal([](Settings& s) { s.count = 9; }) == "no error");
  CHECK(refusal([](Settings& s) { s.rate = 1; }) == "paint: rate must be in [0, 1), got 1");
  CHECK(refusal([](Settings& s) { s.rate = -0.5; }) == "paint: rate must be in [0, 1), got -0.5");
  CHECK(refusal([](Settings& s) { s.rate = std::numeric_limits<double>::quiet_NaN(); }) ==
        "paint: rate must be finite, got nan");
  const auto number = [](double x, const Rule& rule) {
    return error_of([&] { detail::check_number("--x:", x, rule); });
  };
  CHECK(number(0, above(0)) == "--x: must be above 0, got 0");
  CHECK(number(1e-300, above(0)) == "no error");
  const Rule both{.low = 0, .high = 5, .low_is_out = true};
  CHECK(number(6, both) == "--x: must be above 0 and at most 5, got 6");
  CHECK(number(5, both) == "no error");
}

TEST_CASE("fields: words of enums") {
  CHECK(word_of(kColours, Colour::green) == std::string("green"));
  CHECK(error_of([] { word_of(kColours, static_cast<Colour>(7)); }) ==
        "settings: value 7 of an enum must have a word in its table");
  CHECK(value_of(kColours, "green", "paint: colour") == Colour::green);
  CHECK(error_of([] { value_of(kColours, "blue", "paint: colour"); }) ==
        "paint: colour must be one of red, green, got 'blue'");
}

TEST_CASE("fields: what a checkpoint saves and may omit") {
  Settings s;
  s.count = 7;
  s.maybe = true;
  s.colour = Colour::green;
  s.rate = 0.25;
  CHECK(io::fields_to_json(s).dump() ==
        R"({"the_count":7,"depth":2,"on":false,"maybe":true,"text":"a","colour":"green"})");
  const Settings back = read(io::fields_to_json(s).dump().c_str());
  CHECK(back.count == 7);
  CHECK(back.maybe == true);
  CHECK(back.colour == Colour::green);
  CHECK(back.rate == 0.5);  // not saved
  CHECK(read(R"({"the_count": 4})").deep == 2);
  CHECK(read(R"({"the_count": 4, "deep": 9, "depth": 5})").deep == 5);
  const auto refused = [](const char* json) { return error_of([&] { read(json); }); };
  CHECK(refused("{}").find("the_count") != std::string::npos);
  CHECK(refused(R"({"the_count": 1.5})").find("expected an integer") != std::string::npos);
  CHECK(refused(R"({"the_count": 1, "colour": "blue"})") ==
        "state.json: colour must be one of red, green, got 'blue'");
}

}  // namespace weft::fields_test
