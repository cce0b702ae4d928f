#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

#include "weft/core/error.h"
#include "weft/io/json.h"
#include "weft/tests/support.h"

namespace weft::json_test {
using io::Json;
using test::error_of;

namespace {

std::string refusal(const std::string& text, const io::JsonLimits& limits = {}) {
  return error_of([&] { Json::parse(text, "x.json", limits); });
}

}  // namespace

TEST_CASE("json: a value of every kind reads and writes") {
  const std::string text =
      R"({"null":null,"yes":true,"no":false,"int":-9007199254740993,"real":0.1,)"
      R"("text":"a\"b\\c\nd","list":[1,[],{}],"":{"nested":[[2]]}})";
  const Json v = Json::parse(text);
  CHECK(v.dump() == text);
  CHECK(v.at("null").is_null());
  CHECK(v.at("yes").as_bool());
  CHECK_FALSE(v.at("no").as_bool());
  CHECK(v.at("int").as_int() == -9007199254740993);
  CHECK(v.at("real").as_double() == 0.1);
  CHECK(v.at("text").as_string() == "a\"b\\c\nd");
  CHECK(v.at("list").items().size() == 3);
  CHECK(v.at("").at("nested").items()[0].items()[0].as_int() == 2);
  CHECK(v.find("absent") == nullptr);
  CHECK(v.members()[1].key == "yes");
  CHECK(Json::parse(" \t\r\n[ 1 , 2 ] ").dump() == "[1,2]");
  CHECK(Json::parse("{ }").dump() == "{}");
}

TEST_CASE("json: doubles survive a round trip through text") {
  for (const double v : {0.0, -0.0, 1.0, 0.1, 1.0 / 3, 1e-300, 5e-324, 1.7976931348623157e308, 1e21,
                         123456789.123456789}) {
    const Json back = Json::parse(Json(v).dump());
    CHECK(back.as_double() == v);
  }
  CHECK(Json(1e22).dump() == "1e+22");
  const Json numbers = Json().push_back(0.0).push_back(2.5).push_back(1e22).push_back(-3);
  CHECK(numbers.dump() == "[0,2.5,1e+22,-3]");
  CHECK(numbers.dump(Json::Doubles::marked) == "[0.0,2.5,1e+22,-3]");
  CHECK(Json(std::numeric_limits<double>::quiet_NaN()).dump() == "null");
  CHECK(Json(-std::numeric_limits<double>::infinity()).dump() == "null");
  CHECK(Json::parse("9223372036854775807").as_int() == INT64_MAX);
  CHECK(Json::parse("9223372036854775808").as_double() == 9223372036854775808.0);
  CHECK(Json::parse("1e2").as_double() == 100);
  CHECK_FALSE(Json::parse("1e2").is_int());
}

TEST_CASE("json: strings with escapes and UTF-8") {
  CHECK(Json::parse(R"("\u00e9\u20ac\ud83d\ude00\/\b\f\t\r")").as_string() ==
        "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80/\b\f\t\r");
  CHECK(Json(std::string("\x01\x1F", 2)).dump() == R"("\u0001\u001f")");
  CHECK(Json("\xC3\xA9").dump() == "\"\xC3\xA9\"");
  CHECK(io::find_invalid_utf8("a\xF4\x8F\xBF\xBF") == std::string::npos);
  CHECK(io::find_invalid_utf8("a\xF4\x90\x80\x80") == 1);
  CHECK(io::find_invalid_utf8("ab\xE0\x9F\xBF") == 2);
  CHECK(io::find_invalid_utf8("\xF0\x8F\xBF\xBF") == 0);
  CHECK(io::find_invalid_utf8("\xE2\x82") == 0);
  CHECK(io::find_invalid_utf8("\x80") == 0);
}

TEST_CASE("json: hostile text is refused at the wrong byte") {
  CHECK(refusal("") == "x.json: unexpected end at byte 0");
  CHECK(refusal("[1") == "x.json: expected ',' or ']' at byte 2");
  CHECK(refusal("[1,]") == "x.json: unexpected character at byte 3");
  CHECK(refusal("{\"a\" 1}") == "x.json: expected ':' at byte 5");
  CHECK(refusal("{a:1}") == "x.json: expected a key at byte 1");
  CHECK(refusal("{\"a\":1 \"b\":2}") == "x.json: expected ',' or '}' at byte 7");
  CHECK(refusal("{\"a\":1,\"b\":2,\"a\":3}") == "x.json: duplicate key \"a\" at byte 13");
  CHECK(refusal("1 2") == "x.json: text after the value at byte 2");
  CHECK(refusal("tru") == "x.json: unexpected character at byte 0");
  CHECK(refusal("nul") == "x.json: unexpected character at byte 0");
  CHECK(refusal("NaN") == "x.json: unexpected character at byte 0");
  CHECK(refusal("-Infinity") == "x.json: expected a digit at byte 1");
  CHECK(refusal("+1") == "x.json: unexpected character at byte 0");
  CHECK(refusal(".5") == "x.json: unexpected character at byte 0");
  CHECK(refusal("1.") == "x.json: expected a digit at byte 2");
  CHECK(refusal("1e") == "x.json: expected a digit at byte 2");
  CHECK(refusal("01") == "x.json: text after the value at byte 1");
  CHECK(refusal("1e999") == "x.json: number out of range at byte 0");
  CHECK(refusal("\"a") == "x.json: unexpected end at byte 2");
  CHECK(refusal("\"a\nb\"") == "x.json: control character in a string at byte 2");
  CHECK(refusal("\"\\x\"") == "x.json: unknown escape at byte 1");
  CHECK(refusal("\"\\u12g4\"") == "x.json: unknown escape at byte 1");
  CHECK(refusal("\"\\u+123\"") == "x.json: unknown escape at byte 1");
  CHECK(refusal("\"\\") == "x.json: unknown escape at byte 1");
  CHECK(refusal("\"\\ud800\"") == "x.json: lone surrogate at byte 1");
  CHECK(refusal("\"\\udc00\"") == "x.json: lone surrogate at byte 1");
  CHECK(refusal("\"\\ud800\\u0041\"") == "x.json: lone surrogate at byte 1");
  CHECK(refusal("[\"\xC3\"]") == "x.json: invalid UTF-8 at byte 2");
  CHECK(refusal("\xEF\xBB\xBF{}") == "x.json: unexpected character at byte 0");
  CHECK(refusal("/* */1") == "x.json: unexpected character at byte 0");
  CHECK(refusal(std::string(100'000, '[')) == "x.json: nesting too deep at byte 64");
  CHECK(refusal("[[[]]]", {.depth = 2}) == "x.json: nesting too deep at byte 2");
  CHECK(refusal("[1,2,3]", {.values = 3}) == "x.json: too many values at byte 5");
  CHECK(refusal("[[],[],[]]", {.depth = 2}) == "no error");
}

TEST_CASE("json: building values and accessing the wrong kind") {
  Json v;
  v.set("a", 1).set("b", "x").set("a", 2.5);
  v.set("c", Json().push_back(true).push_back(Json()));
  CHECK(v.dump() == R"({"a":2.5,"b":"x","c":[true,null]})");
  CHECK(error_of([&] { v.at("b").as_int(); }) == "json: expected an integer, got a string");
  CHECK(error_of([&] { v.at("a").as_int(); }) == "json: expected an integer, got a number");
  CHECK(error_of([&] { v.at("b").as_double(); }) == "json: expected a number, got a string");
  CHECK(error_of([&] { v.at("c").as_string(); }) == "json: expected a string, got an array");
  CHECK(error_of([&] { v.as_bool(); }) == "json: expected a boolean, got an object");
  CHECK(error_of([&] { v.items(); }) == "json: expected an array, got an object");
  CHECK(error_of([&] { Json(1).members(); }) == "json: expected an object, got an integer");
  CHECK(error_of([&] { v.at("z"); }) == "json: no key \"z\"");
  CHECK(error_of([&] { Json(true).set("a", 1); }) == "json: expected an object, got a boolean");
  CHECK(error_of([&] { Json().at("a"); }) == "json: expected an object, got null");
}

TEST_CASE("json: the members of a large object are visited one by one") {
  std::string seen;
  const auto each = [&](const std::string& text, const io::JsonLimits& limits = {}) {
    seen.clear();
    return error_of([&] {
      const bool object = Json::each_member(
          text, "x.json",
          [&](const std::string& key, const Json& value, std::size_t byte) {
            seen += message("{}@{}={} ", key, byte, value.dump());
          },
          limits);
      if (!object) seen = "no object";
    });
  };
  CHECK(each(R"( {"a": 1, "b" : [2, {"c":3}], "a":{}} )") == "no error");
  CHECK(seen == "a@2=1 b@10=[2,{\"c\":3}] a@30={} ");
  CHECK(each("{}") == "no error");
  CHECK(seen.empty());
  CHECK(each("[1]") == "no error");
  CHECK(seen == "no object");
  CHECK(each(R"({"a":[1,2],"b":[3,4]})", {.values = 3}) == "no error");
  CHECK(each(R"({"a":[1,2,3]})", {.values = 3}) == "x.json: too many values at byte 10");
  CHECK(each(R"({"a":{"b":1,"b":2}})") == "x.json: duplicate key \"b\" at byte 12");
  CHECK(each(R"({"a":1}x)") == "x.json: text after the value at byte 7");
  CHECK(each(R"({"a":[[]]})", {.depth = 2}) == "x.json: nesting too deep at byte 6");
  CHECK(each("{\"a\":1,\"\xFF\":2}") == "x.json: invalid UTF-8 at byte 8");
}

TEST_CASE("json: the error names the first repeated key of small and large objects") {
  std::string text = "{";
  for (int i = 0; i < 100; ++i) text += message("\"k{}\":{},", i % 70, i);
  text.back() = '}';
  const std::size_t second = text.find("\"k0\"", 10);
  CHECK(refusal(text) == message("x.json: duplicate key \"k0\" at byte {}", second));
}

}  // namespace weft::json_test
