#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "weft/autograd/values.h"
#include "weft/core/error.h"
#include "weft/io/file.h"
#include "weft/io/npy.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::npy_test {
using test::error_of;

namespace {

std::string npy(int version, const std::string& header, const std::string& data) {
  std::string out = "\x93NUMPY";
  out += static_cast<char>(version);
  out += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i)
    out += static_cast<char>(header.size() >> (8 * i) & 255);
  return out + header + data;
}

std::string dict(const std::string& descr, const std::string& order, const std::string& shape) {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
}

Tensor load(const std::string& bytes) {
  const test::TempFolder folder;
  io::write_file(folder / "x.npy", bytes);
  return io::load_npy(folder / "x.npy");
}

std::string refusal(const std::string& bytes) {
  const test::TempFolder folder;
  const std::string path = folder / "x.npy";
  io::write_file(path, bytes);
  std::string text = error_of([&] { io::load_npy(path); });
  const std::string prefix = "npy: '" + path + "'";
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

const std::string kTwoInts("\1\0\0\0\xFE\xFF\xFF\xFF", 8);

}  // namespace

TEST_CASE("npy: golden bytes of numpy.save") {
  const test::TempFolder folder;
  const std::string path = folder / "x.npy";
  const std::vector<std::int32_t> values = {1, -2};
  io::save_npy(path, Tensor::from<std::int32_t>(values, {2}));
  std::string header = "{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }";
  header.resize(117, ' ');
  CHECK(io::read_file(path) == npy(1, header + "\n", kTwoInts));
  io::save_npy(path, Tensor::empty({3, 0}, DType::f64));
  header = "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 0), }";
  header.resize(117, ' ');
  CHECK(io::read_file(path) == npy(1, header + "\n", ""));
}

TEST_CASE("npy: every dtype and rank survives a round trip") {
  const test::TempFolder folder;
  const std::string path = folder / "x.npy";
  for (const DType t :
       {DType::f32, DType::f64, DType::f16, DType::i32, DType::i64, DType::u8, DType::boolean})
    for (const Shape& shape : {Shape{}, Shape{3}, Shape{2, 3}, Shape{2, 0, 5}, Shape{1, 2, 1, 3}}) {
      const Tensor x = Tensor::empty(shape, t);
      const auto bytes = static_cast<std::size_t>(x.numel()) * size_of(t);
      for (std::size_t i = 0; i < bytes; ++i)
        static_cast<unsigned char*>(x.raw())[i] =
            static_cast<unsigned char>(t == DType::boolean ? i & 1 : 41 * i + 3);
      io::save_npy(path, x);
      const Tensor y = io::load_npy(path);
      CHECK(y.dtype() == t);
      CHECK(y.shape() == shape);
      CHECK((bytes == 0 || std::memcmp(x.raw(), y.raw(), bytes) == 0));
    }
}

TEST_CASE("npy: Fortran order, format 2 and other spellings of the header") {
  std::string data;
  for (char v = 0; v < 6; ++v) data += v;
  const Tensor f = load(npy(1, dict("|u1", "True", "(2, 3)"), data));
  CHECK(f.shape() == Shape{2, 3});
  CHECK(f.strides() == Shape{1, 2});
  const Tensor three = load(npy(1, dict("|u1", "True", "(1, 2, 3)"), data));
  CHECK(three.strides() == Shape{1, 1, 2});
  CHECK(load(npy(2, dict("<i4", "False", "(2,)"), kTwoInts)).data<std::int32_t>()[1] == -2);
  CHECK(load(npy(3, dict("<i4", "False", "(2,)"), kTwoInts)).data<std::int32_t>()[0] == 1);
  CHECK(load(npy(1, "{\"shape\":(2,),\"fortran_order\":False,\"descr\":\"<i4\"}\n", kTwoInts))
            .shape() == Shape{2});
  CHECK(load(npy(1, dict("<f4", "False", "()"), std::string("\0\0\x80\x3F", 4))).data<float>()[0] ==
        1);
}

TEST_CASE("npy: integers without a dtype are widened") {
  const std::string bytes("\1\0\xFF\xFF\0\x80\xFE\x7F", 8);
  const auto values = [&](const std::string& dtype, const std::string& shape, DType wide) {
    const Tensor x = load(npy(1, dict(dtype, "False", shape), bytes));
    CHECK(x.dtype() == wide);
    return to_vector<double>(x);
  };
  using Values = std::vector<double>;
  CHECK(values("|i1", "(8,)", DType::i32) == Values{1, 0, -1, -1, 0, -128, -2, 127});
  CHECK(values("<i2", "(4,)", DType::i32) == Values{1, -1, -32768, 32766});
  CHECK(values("<u2", "(2, 2)", DType::i32) == Values{1, 65535, 32768, 32766});
  CHECK(values("<u4", "(2,)", DType::i64) == Values{4294901761.0, 2147385344.0});
  const Tensor columns = load(npy(1, dict("<u2", "True", "(2, 2)"), bytes));
  CHECK(to_vector<double>(contiguous(columns)) == Values{1, 32768, 65535, 32766});
  CHECK(load(npy(1, dict("<u2", "False", "(0, 3)"), "")).shape() == Shape{0, 3});
  CHECK(refusal(npy(1, dict("<u2", "False", "(3,)"), bytes)) ==
        ": <u2 [3] needs 6 bytes of data, got 8");
}

TEST_CASE("npy: files of other formats are named, with what to do") {
  const test::TempFolder folder;
  const std::string path = folder / "x.npy";
  const auto text = [&](const std::string& bytes) {
    io::write_file(path, bytes);
    return error_of([&] { io::load_npy(path); });
  };
  const std::string file = "npy: '" + path + "' is a ";
  CHECK(text(std::string("PK\3\4\x2D\0\0\0\0\0\0\0!\0", 14) + "arr_0.npy...") ==
        file +
            ".npz archive; convert it: python3 -c \"import numpy, safetensors.numpy as s; "
            "s.save_file(dict(numpy.load('" +
            path + "')), '" + path + ".safetensors')\"");
  const std::string pickle =
      file +
      "PyTorch pickle; convert it: python3 -c \"import torch, safetensors.torch as s; "
      "s.save_file({k: v.clone().contiguous() for k, v in torch.load('" +
      path + "', map_location='cpu').items()}, '" + path + ".safetensors')\"";
  CHECK(text("PK\3\4.........archive/data.pkl") == pickle);
  CHECK(text("\x80\2}q.........") == pickle);
  CHECK(text(std::string("\2\0\0\0\0\0\0\0{}", 10)) ==
        file + "safetensors file: read it with io::load_safetensors()");
  CHECK(text("PK\3\4.........") == "npy: '" + path + "' is not a NumPy file");
}

TEST_CASE("npy: hostile files are refused") {
  const auto with = [](const std::string& header) { return refusal(npy(1, header, kTwoInts)); };
  const std::string good = dict("<i4", "False", "(2,)");
  CHECK(refusal("") == " must have at least 10 bytes, got 0");
  CHECK(refusal(std::string(10, 'x')) == " is not a NumPy file");
  CHECK(refusal(npy(4, good, kTwoInts)) == " must have format 1.0, 2.0 or 3.0, got 4.0");
  CHECK(refusal(npy(1, good, "").substr(0, 30)) ==
        ": a header of 57 bytes does not fit into a file of 30 bytes");
  CHECK(refusal(std::string("\x93NUMPY\2\0\xFF\xFF\xFF\xFF", 12)) ==
        ": a header of 4294967295 bytes does not fit into a file of 12 bytes");
  CHECK(refusal(std::string("\x93NUMPY\2\0\0\0", 10)) ==
        ": a header of 0 bytes does not fit into a file of 10 bytes");
  CHECK(with("") == ": header: expected '{' at byte 0");
  CHECK(with("{'descr'") == ": header: expected ':' at byte 8");
  CHECK(with("{'descr") == ": header: unexpected end at byte 1");
  CHECK(with("{1: 2}") == ": header: expected a string at byte 1");
  CHECK(with("{'x': 2}") == ": header: unknown key at byte 5");
  CHECK(with("{'shape': (2,), 'shape': (2,)}") == ": header: repeated key at byte 24");
  CHECK(with("{'shape': (2,)}") == ": header: descr, fortran_order or shape is missing at byte 15");
  CHECK(with(good + "x") == ": header: text after the dictionary at byte 57");
  CHECK(with(dict("<i4", "false", "(2,)")) == ": header: expected True or False at byte 34");
  CHECK(with(dict("<i4", "False", "(-2,)")) == ": header: expected an axis length at byte 51");
  CHECK(with(dict("<i4", "False", "(2)")) == ": header: expected ',' at byte 52");
  CHECK(with(dict("<i4", "False", "2")) == ": header: expected '(' at byte 50");
  CHECK(with(dict("<i4", "False", "(1,1,1,1,1,1,1,1,1)")) ==
        ": header: more than 8 axes at byte 68");
  CHECK(with(dict("<i4", "False", "(99999999999999999999,)")) ==
        ": header: expected an axis length at byte 51");
  CHECK(with(dict(">i4", "False", "(2,)")) == " has big-endian dtype '>i4'; save it little-endian");
  CHECK(with(dict("<c8", "False", "(1,)")) ==
        ": dtype must be one of <f4 <f8 <f2 <i4 <i8 |u1 |b1 |i1 <i2 <u2 <u4, got '<c8'");
  CHECK(with(dict("<i4", "False", "(4294967296, 4294967296)")) ==
        ": the size of shape [4294967296, 4294967296] overflows");
  CHECK(with(dict("<i4", "False", "(3,)")) == ": i32 [3] needs 12 bytes of data, got 8");
  CHECK(with(dict("<i4", "False", "(1,)")) == ": i32 [1] needs 4 bytes of data, got 8");
  CHECK(with(dict("<i4", "False", "(0,)")) == ": i32 [0] needs 0 bytes of data, got 8");
  CHECK(with(dict("|b1", "False", "(8,)")) == ": a bool must be 0 or 1, got 254");
}

TEST_CASE("npy: errors of saving") {
  const test::TempFolder folder;
  const std::string path = folder / "x.npy";
  CHECK(error_of([&] { io::save_npy(path, Tensor()); }) == "save_npy: the tensor is null");
  CHECK(error_of([&] { io::save_npy(path, Tensor::empty({2}, DType::f32, kMeta)); }) ==
        "save_npy: the tensor is on the meta device and has no data");
  CHECK(error_of([&] { io::save_npy(path, Tensor::empty({2}, DType::bf16)); }) ==
        "save_npy: NumPy has no dtype for bf16; cast it to f32 first");
}

}  // namespace weft::npy_test
