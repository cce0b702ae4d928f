#include <doctest/doctest.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "weft/autograd/values.h"
#include "weft/core/error.h"
#include "weft/io/file.h"
#include "weft/io/safetensors.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::safetensors_test {
using io::SafetensorsFile;
using test::error_of;

namespace {

void put(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string little_endian(std::uint64_t v) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(v >> (8 * i) & 255);
  return out;
}

/// A file with this header and `data` zero bytes.
std::string craft(const std::string& header, std::size_t data) {
  return little_endian(header.size()) + header + std::string(data, '\0');
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}";
}

/// The error on opening such a file, without the file name and module.
std::string refusal(const std::string& bytes) {
  const test::TempFolder folder;
  const std::string path = folder / "x.safetensors";
  put(path, bytes);
  const std::string text = error_of([&] { SafetensorsFile::open(path); });
  const std::string prefix = "safetensors: '" + path + "': ";
  if (text.starts_with(prefix)) return text.substr(prefix.size());
  return text;
}

template <class T>
Tensor values(const std::vector<T>& v) {
  return Tensor::from<T>(v, {static_cast<std::int64_t>(v.size())});
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (a.numel() == 0 ||
          std::memcmp(a.raw(), b.raw(), static_cast<std::size_t>(a.numel()) * size_of(a.dtype())) ==
              0);
}

}  // namespace

TEST_CASE("safetensors: golden bytes of a small file") {
  const test::TempFolder folder;
  const std::string path = folder / "x.safetensors";
  io::save_safetensors(path,
                       {{"b", values<float>({1, -2})},
                        {"a", values<std::uint8_t>({1, 0, 1})},
                        {"c", values<std::int64_t>({3}).alias({}, {}, 0)}},
                       {{"made", "\"x\""}});
  const std::string header = R"({"__metadata__":{"made":"\"x\""},)"
                             R"("c":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                             R"("b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},)"
                             R"("a":{"dtype":"U8","shape":[3],"data_offsets":[16,19]}})"
                             "       ";
  REQUIRE(header.size() % 8 == 0);
  const std::string data("\3\0\0\0\0\0\0\0\0\0\x80\x3f\0\0\0\xc0\1\0\1", 19);
  CHECK(io::read_file(path) == little_endian(header.size()) + header + data);
}

TEST_CASE("safetensors: every dtype and empty and rank-0 tensors survive a round trip") {
  const test::TempFolder folder;
  const std::string path = folder / "x.safetensors";
  StateDict tensors;
  for (int i = 0; i < kDTypes; ++i) {
    const DType t = static_cast<DType>(i);
    for (const Shape& shape :
         {Shape{2, 3}, Shape{}, Shape{4, 0, 3}, Shape{1, 1, 1, 1, 1, 1, 1, 1}}) {
      const Tensor x = Tensor::empty(shape, t);
      auto* bytes = static_cast<unsigned char*>(x.numel() ? x.raw() : nullptr);
      const auto n = static_cast<std::size_t>(x.numel()) * size_of(t);
      for (std::size_t k = 0; k < n; ++k)  // any pattern, NaNs included
        bytes[k] = static_cast<unsigned char>(t == DType::boolean ? k & 1 : 37 * k + 200);
      tensors.emplace(std::string(name(t)) + to_string(shape), x);
    }
  }
  io::save_safetensors(path, tensors, {{"k", "v"}, {"", "\xC3\xA9\n"}});

  const SafetensorsFile file = SafetensorsFile::open(path);
  CHECK(file.names().size() == tensors.size());
  const StateDict loaded = io::load_safetensors(path);
  CHECK(loaded.size() == tensors.size());
  for (const auto& [name, x] : tensors) CHECK(same_bytes(loaded.at(name), x));
  CHECK(file.metadata() == io::Metadata{{"k", "v"}, {"", "\xC3\xA9\n"}});
  for (const auto& [name, x] : tensors) {
    CAPTURE(name);
    CHECK(file.contains(name));
    CHECK(file.dtype(name) == x.dtype());
    CHECK(file.shape(name) == x.shape());
    CHECK(same_bytes(file.tensor(name), x));
    const Tensor out = Tensor::empty(x.shape(), x.dtype());
    const std::uint32_t version = out.version();
    const void* place = x.numel() ? out.raw() : nullptr;
    file.read_into(name, out);
    CHECK(same_bytes(out, x));
    if (x.numel() == 0) continue;
    CHECK(out.version() > version);
    CHECK(out.raw() == place);
  }
}

TEST_CASE("safetensors: a file without tensors") {
  const test::TempFolder folder;
  const std::string path = folder / "x.safetensors";
  io::save_safetensors(path, {});
  CHECK(io::read_file(path) == little_endian(8) + "{}      ");
  CHECK(SafetensorsFile::open(path).names().empty());
}

TEST_CASE("safetensors: every valid variant opens") {
  const std::string a = entry("a", "F32", "[2]", "[0,8]");
  CHECK(refusal(craft("{" + a + "}", 8)) == "no error");
  CHECK(refusal(craft(" \n\t{" + a + "}", 8)) == "no error");
  CHECK(refusal(craft("{" + a + "}     ", 8)) == "no error");
  CHECK(refusal(craft("{" + entry("z", "U8", "[0]", "[8,8]") + "," + a + "}", 8)) == "no error");
  CHECK(refusal(craft("{" + entry("b", "U8", "[3]", "[8,11]") + "," + a + "}", 11)) == "no error");
  CHECK(refusal(craft(R"({"__metadata__":{}})", 0)) == "no error");
  CHECK(refusal(craft("{" + entry("a", "F4", "[2]", "[0,1]") + "}", 1)) == "no error");
  CHECK(refusal(craft("{" + entry("\\u00e9\\ud83d\\ude00", "F64", "[]", "[0,8]") + "}", 8)) ==
        "no error");
}

TEST_CASE("safetensors: hostile files are refused with the rule they break") {
  const std::string f32 = entry("a", "F32", "[2]", "[0,8]");
  const auto one = [&](const std::string& dtype, const std::string& shape,
                       const std::string& offsets, std::size_t data) {
    return refusal(craft("{" + entry("a", dtype, shape, offsets) + "}", data));
  };

  SUBCASE("length and header bounds") {
    CHECK(refusal("") == "the file must have at least 8 bytes, got 0");
    CHECK(refusal("1234567") == "the file must have at least 8 bytes, got 7");
    CHECK(refusal(little_endian(100'000'001)) ==
          "the header must have at most 100000000 bytes, got 100000001");
    CHECK(refusal(little_endian(UINT64_MAX)) ==
          "the header must have at most 100000000 bytes, got 18446744073709551615");
    CHECK(refusal(little_endian(UINT64_MAX - 7) + "{}") ==
          "the header must have at most 100000000 bytes, got 18446744073709551608");
    CHECK(refusal(little_endian(3) + "{}") ==
          "a header of 3 bytes does not fit into a file of 10 bytes");
    CHECK(refusal(little_endian(0)) == "header: unexpected end at byte 0");
  }
  SUBCASE("text and JSON errors") {
    CHECK(refusal(craft("{\"\xFF\":1}", 0)) == "header: invalid UTF-8 at byte 2");
    CHECK(refusal(craft("{\"\xC0\xAF\":1}", 0)) == "header: invalid UTF-8 at byte 2");
    CHECK(refusal(craft("{\"\xED\xA0\x80\":1}", 0)) == "header: invalid UTF-8 at byte 2");
    CHECK(refusal(craft("[]", 0)) == "the header must be a JSON object");
    CHECK(refusal(craft("1", 0)) == "the header must be a JSON object");
    CHECK(refusal(craft("{", 0)) == "header: expected a key at byte 1");
    CHECK(refusal(craft("{" + f32, 8)) == "header: expected ',' or '}' at byte 53");
    CHECK(refusal(craft("{" + f32 + ",}", 8)) == "header: expected a key at byte 54");
    CHECK(refusal(craft("{" + f32 + "}x", 8)) == "header: text after the value at byte 54");
    CHECK(refusal(craft("{" + f32 + "}{}", 8)) == "header: text after the value at byte 54");
    CHECK(refusal(craft("{" + f32 + "}" + std::string(1, '\0'), 8)) ==
          "header: text after the value at byte 54");
    CHECK(refusal(craft(std::string(1'000'000, '['), 0)) == "header: nesting too deep at byte 64");
    CHECK(refusal(craft("{" + f32 + "," + f32 + "}", 16)) ==
          "header: duplicate key \"a\" at byte 54");
    CHECK(refusal(craft("{" + f32 + "," + entry("\\u0061", "U8", "[0]", "[8,8]") + "}", 8)) ==
          "header: duplicate key \"a\" at byte 54");
    CHECK(refusal(craft("{\"a\":NaN}", 0)) == "header: unexpected character at byte 5");
    CHECK(refusal(craft("{\"a\\ud800\":1}", 0)) == "header: lone surrogate at byte 3");
  }
  SUBCASE("metadata errors") {
    CHECK(refusal(craft(R"({"__metadata__":[]})", 0)) == "__metadata__ must be an object");
    CHECK(refusal(craft(R"({"__metadata__":{"a":1}})", 0)) ==
          "__metadata__ value \"a\" must be a string");
    CHECK(refusal(craft(R"({"__metadata__":{"a":{"b":"c"}}})", 0)) ==
          "__metadata__ value \"a\" must be a string");
    CHECK(refusal(craft(R"({"__metadata__":{},"__metadata__":{}})", 0)) ==
          "header: duplicate key \"__metadata__\" at byte 19");
  }
  SUBCASE("errors in a tensor's fields") {
    const std::string fields = "tensor \"a\" must have exactly dtype, shape and data_offsets";
    CHECK(refusal(craft(R"({"a":1})", 0)) == fields);
    CHECK(refusal(craft(R"({"a":{}})", 0)) == fields);
    CHECK(refusal(craft(R"({"a":{"dtype":"U8","shape":[0]}})", 0)) == fields);
    CHECK(refusal(craft(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}})", 0)) ==
          fields);
    CHECK(refusal(craft(R"({"a":{"dtype":1,"shape":[0],"data_offsets":[0,0]}})", 0)) ==
          "tensor \"a\": dtype must be a string");
    CHECK(one("F99", "[0]", "[0,0]", 0) ==
          "tensor \"a\": dtype \"F99\" is not one of BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 "
          "F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64");
    CHECK(one("f32", "[0]", "[0,0]", 0).starts_with("tensor \"a\": dtype \"f32\" is not one of "));
    CHECK(one("U8", "3", "[0,3]", 3) == "tensor \"a\": shape must be an array");
    CHECK(one("U8", "[-1]", "[0,0]", 0) == "tensor \"a\": shape must hold non-negative integers");
    CHECK(one("U8", "[1.0]", "[0,1]", 1) == "tensor \"a\": shape must hold non-negative integers");
    CHECK(one("U8", "[\"1\"]", "[0,1]", 1) ==
          "tensor \"a\": shape must hold non-negative integers");
    CHECK(one("U8", "[18446744073709551616]", "[0,0]", 0) ==
          "tensor \"a\": shape must hold non-negative integers");
    CHECK(one("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]", 1) ==
          "tensor \"a\": shape must have at most 8 axes, got 9");
    CHECK(one("U8", "[1]", "1", 1) ==
          "tensor \"a\": data_offsets must be two non-negative integers");
    CHECK(one("U8", "[1]", "[0]", 1) ==
          "tensor \"a\": data_offsets must be two non-negative integers");
    CHECK(one("U8", "[1]", "[0,1,2]", 1) ==
          "tensor \"a\": data_offsets must be two non-negative integers");
    CHECK(one("U8", "[1]", "[-1,0]", 1) ==
          "tensor \"a\": data_offsets must be two non-negative integers");
    CHECK(one("U8", "[0]", "[1,0]", 0) == "tensor \"a\": data_offsets [1, 0] must not decrease");
  }
  SUBCASE("size errors") {
    CHECK(one("F32", "[4294967296,4294967296]", "[0,0]", 0) ==
          "tensor \"a\": the product of shape [4294967296, 4294967296] overflows");
    CHECK(one("U8", "[0,4294967296,4294967296]", "[0,0]", 0) ==
          "tensor \"a\": the product of shape [0, 4294967296, 4294967296] overflows");
    CHECK(one("F32", "[2305843009213693952]", "[0,0]", 0) ==
          "tensor \"a\": the size of shape [2305843009213693952] in bits overflows");
    CHECK(one("F4", "[3]", "[0,2]", 2) == "tensor \"a\": F4 [3] does not fill whole bytes");
    CHECK(one("F32", "[2]", "[0,4]", 4) ==
          "tensor \"a\": F32 [2] needs 8 bytes, data_offsets give 4");
    CHECK(one("F32", "[]", "[0,8]", 8) ==
          "tensor \"a\": F32 [] needs 4 bytes, data_offsets give 8");
  }
  SUBCASE("layout errors") {
    const std::string b = entry("b", "U8", "[4]", "[4,8]");
    CHECK(one("U8", "[4]", "[4,8]", 8) ==
          "tensor \"a\" must begin at byte 0 of the data, where the data begin, got 4");
    CHECK(refusal(craft("{" + entry("a", "U8", "[3]", "[0,3]") + "," + b + "}", 8)) ==
          "tensor \"b\" must begin at byte 3 of the data, where the one before ends, got 4");
    CHECK(refusal(craft("{" + entry("a", "U8", "[5]", "[0,5]") + "," + b + "}", 8)) ==
          "tensor \"b\" must begin at byte 5 of the data, where the one before ends, got 4");
    CHECK(refusal(craft("{" + f32 + "," + entry("b", "F32", "[2]", "[0,8]") + "}", 8)) ==
          "tensor \"b\" must begin at byte 8 of the data, where the one before ends, got 0");
    CHECK(one("U8", "[4]", "[0,4]", 5) ==
          "the tensors end at byte 4 of the data, the file at byte 5");
    CHECK(one("U8", "[4]", "[0,4]", 3) ==
          "the tensors end at byte 4 of the data, the file at byte 3");
    CHECK(refusal(craft("{}", 1)) == "the tensors end at byte 0 of the data, the file at byte 1");
  }
}

TEST_CASE("safetensors: integers without a dtype are widened") {
  const test::TempFolder folder;
  const std::string path = folder / "x.safetensors";
  put(path,
      craft("{" + entry("a", "I8", "[2]", "[0,2]") + "," + entry("b", "I16", "[1]", "[2,4]") + "," +
                entry("c", "U16", "[3]", "[4,10]") + "," + entry("d", "U32", "[1]", "[10,14]") +
                "," + entry("e", "U16", "[0]", "[14,14]") + "}",
            0) +
          std::string("\1\xFF\0\x80\1\0\xFF\xFF\0\x80\xFE\xFF\xFF\xFF", 14));
  const StateDict state = io::load_safetensors(path);
  using Values = std::vector<double>;
  CHECK(to_vector<double>(state.at("a")) == Values{1, -1});
  CHECK(to_vector<double>(state.at("b")) == Values{-32768});
  CHECK(to_vector<double>(state.at("c")) == Values{1, 65535, 32768});
  CHECK(to_vector<double>(state.at("d")) == Values{4294967294.0});
  CHECK(state.at("e").numel() == 0);
  CHECK(state.at("a").dtype() == DType::i32);
  CHECK(state.at("d").dtype() == DType::i64);
  const SafetensorsFile file = SafetensorsFile::open(path);
  CHECK(file.dtype("c") == DType::i32);
  const Tensor in_place = Tensor::zeros({3}, DType::i32), as_float = Tensor::zeros({3});
  file.read_into("c", in_place);
  file.read_into("c", as_float);
  CHECK(to_vector<double>(in_place) == Values{1, 65535, 32768});
  CHECK(to_vector<double>(as_float) == Values{1, 65535, 32768});
  io::save_safetensors(path, {{"i", in_place}});
  CHECK(SafetensorsFile::open(path).dtype("i") == DType::i32);
  CHECK(io::read_file(path).find("\"I32\"") != std::string::npos);
}

TEST_CASE("safetensors: files of other formats are named, with what to do") {
  const test::TempFolder folder;
  const std::string path = folder / "model.pt";
  const auto text = [&](const std::string& bytes) {
    put(path, bytes);
    return error_of([&] { io::load_safetensors(path); });
  };
  const std::string start = "safetensors: '" + path + "' is a ";
  const std::string torch = std::string("PK\3\4\0\0\x08\x08", 8) + "..archive/data.pkl...";
  CHECK(text(torch) ==
        start +
            "PyTorch pickle; convert it: python3 -c \"import torch, safetensors.torch as s; "
            "s.save_file({k: v.clone().contiguous() for k, v in torch.load('" +
            path + "', map_location='cpu').items()}, '" + path + ".safetensors')\"");
  // A frame of 6 bytes: read as a length, it is one that a safetensors header may have.
  CHECK(text(std::string("\x80\4\x95\5\0\0\0\0\0\0\0}.", 13)).starts_with(start + "PyTorch"));
  // A header of 640 bytes that is cut off begins with the bytes of a pickle.
  CHECK(text(std::string("\x80\2\0\0\0\0\0\0{\"w\"", 12)).find("PyTorch") == std::string::npos);
  CHECK(text(std::string("PK\3\4\x14\0\0\0", 8) + "..weight.npy...").starts_with(start + ".npz"));
  CHECK(text(std::string("\x93NUMPY\1\0v\0", 10)) ==
        start + "NumPy array: read it with io::load_npy()");
}

TEST_CASE("safetensors: errors of reading and writing name the problem") {
  const test::TempFolder folder;
  const std::string path = folder / "x.safetensors";
  const std::string in_file = "safetensors: '" + path + "': ";
  put(path, craft("{" + entry("a", "F8_E8M0", "[2]", "[0,2]") + "," +
                      entry("t", "BOOL", "[2]", "[2,4]") + "}",
                  2) +
                std::string("\1\7", 2));
  const SafetensorsFile file = SafetensorsFile::open(path);
  CHECK(error_of([&] { file.tensor("w"); }) == in_file + "no tensor \"w\"");
  CHECK(error_of([&] { file.tensor("a"); }) ==
        in_file +
            "tensor \"a\": dtype must be one of BOOL U8 I8 F8_E5M2 F8_E4M3 I16 U16 F16 BF16 I32 "
            "U32 F32 F64 I64, got F8_E8M0");
  CHECK(error_of([&] { file.tensor("t"); }) ==
        in_file + "tensor \"t\": BOOL must be 0 or 1, got 7");
  CHECK(error_of([&] { file.read_into("t", Tensor::empty({3}, DType::boolean)); }) ==
        in_file + "tensor \"t\" must have shape [3], got [2]");
  CHECK(error_of([&] { SafetensorsFile::open(folder / "none"); }) ==
        "read: cannot open '" + folder / "none" + "': No such file or directory");
  CHECK(error_of([&] { SafetensorsFile::open(folder.path()); }) ==
        "read: cannot open '" + folder.path() + "': Is a directory");

  const Tensor x = values<float>({1, 2});
  CHECK(error_of([&] {
          io::save_safetensors(path, {{"__metadata__", x}});
        }) == "save_safetensors: a tensor cannot be named __metadata__");
  CHECK(error_of([&] {
          io::save_safetensors(path, {{"a", Tensor()}});
        }) == "save_safetensors: tensor \"a\" is null");
  CHECK(error_of([&] {
          io::save_safetensors(path, {{"a", Tensor::empty({2}, DType::f32, kMeta)}});
        }) == "save_safetensors: tensor \"a\" is on the meta device and has no data");
  CHECK(error_of([&] {
          io::save_safetensors(path, {{"\xFF", x}});
        }) == "save_safetensors: tensor names must be UTF-8");
  CHECK(error_of([&] {
          io::save_safetensors(folder / "no/x", {{"a", x}});
        }) == "write: cannot create '" + folder / "no/x" + "': No such file or directory");
}

TEST_CASE("safetensors: a full disk leaves the old file and no temporary") {
  const test::TempFolder folder;
  const std::string path = folder / "x.safetensors";
  io::save_safetensors(path, {{"a", values<float>({1, 2})}});
  const std::string before = io::read_file(path);
  for (const std::int64_t room : {0, 5, 60, 75}) {
    io::testing::fail_writes_after(room);
    const std::string text = error_of([&] {
      io::save_safetensors(path, {{"a", values<float>({3, 4, 5})}});
    });
    io::testing::fail_writes_after(-1);
    CHECK(text == "write: cannot write '" + path + "': No space left on device");
    CHECK(io::read_file(path) == before);
    CHECK(io::list_directory(folder.path()) == std::vector<std::string>{"x.safetensors"});
  }
}

}  // namespace weft::safetensors_test
