#include "weft/io/npy.h"

#include <charconv>
#include <cstring>
#include <iterator>
#include <string_view>

#include "weft/core/error.h"
#include "weft/io/file.h"
#include "weft/io/foreign.h"
#include "weft/io/narrow.h"

namespace weft::io {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr std::int64_t kMaxNpyHeader = 1 << 20;

struct NpyDType {
  std::string_view text;
  DType dtype;            ///< in memory
  std::size_t bytes = 0;  ///< of a value in the file, if it is widened
  Widen widen = nullptr;
  std::size_t file_bytes() const { return widen ? bytes : size_of(dtype); }
};
constexpr NpyDType kDTypes[] = {{"<f4", DType::f32},
                                {"<f8", DType::f64},
                                {"<f2", DType::f16},
                                {"<i4", DType::i32},
                                {"<i8", DType::i64},
                                {"|u1", DType::u8},
                                {"|b1", DType::boolean},
                                {"|i1", DType::i32, 1, widen<std::int8_t, std::int32_t>},
                                {"<i2", DType::i32, 2, widen<std::int16_t, std::int32_t>},
                                {"<u2", DType::i32, 2, widen<std::uint16_t, std::int32_t>},
                                {"<u4", DType::i64, 4, widen<std::uint32_t, std::int64_t>}};

struct Header {
  std::string_view descr;
  bool fortran_order = false;
  Shape shape;
};

/// The header is a Python dict literal with three known keys; this parses only that subset.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  Header parse() {
    Header header;
    bool has[3] = {};
    expect('{');
    while (!take('}')) {
      const std::string_view key = string();
      expect(':');
      const int which = key == "descr" ? 0 : key == "fortran_order" ? 1 : key == "shape" ? 2 : 3;
      if (which == 3) fail("unknown key");
      if (has[which]) fail("repeated key");
      has[which] = true;
      if (which == 0)
        header.descr = string();
      else if (which == 1)
        header.fortran_order = boolean();
      else
        header.shape = shape();
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ < text_.size()) fail("text after the dictionary");
    if (!has[0] || !has[1] || !has[2]) fail("descr, fortran_order or shape is missing");
    return header;
  }

 private:
  [[noreturn]] void fail(const char* reason) const {
    check_system(false, "npy: '{}': header: {} at byte {}", path_, reason, at_);
    __builtin_unreachable();
  }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (take(c)) return;
    const char reason[] = {'e', 'x', 'p', 'e', 'c', 't', 'e', 'd', ' ', '\'', c, '\'', 0};
    fail(reason);
  }

  std::string_view string() {
    skip_space();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') fail("expected a string");
    const std::size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail("unexpected end");
    const std::string_view s = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return s;
  }

  bool boolean() {
    skip_space();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(at_, word.size()) != word) continue;
      at_ += word.size();
      return value;
    }
    fail("expected True or False");
  }

  Shape shape() {
    Shape out;
    expect('(');
    while (!take(')')) {
      skip_space();
      std::int64_t d = 0;
      const char* first = text_.data() + at_;
      const auto [end, error] = std::from_chars(first, text_.data() + text_.size(), d);
      if (error != std::errc() || d < 0) fail("expected an axis length");
      at_ += static_cast<std::size_t>(end - first);
      if (out.size() == kMaxDims) fail("more than 8 axes");
      out.push_back(d);
      if (!take(',')) {
        // In Python (3) is a number, not a tuple.
        if (out.size() == 1) fail("expected ','");
        expect(')');
        break;
      }
    }
    return out;
  }

  std::string_view text_;
  const std::string& path_;
  std::size_t at_ = 0;
};

const NpyDType& parse_dtype(std::string_view descr, const std::string& path) {
  check_system(!descr.starts_with('>'),
               "npy: '{}' has big-endian dtype '{}'; save it little-endian", path, descr);
  for (const NpyDType& t : kDTypes)
    if (t.text == descr) return t;
  std::string known;
  for (const NpyDType& t : kDTypes) known += (known.empty() ? "" : " ") + std::string(t.text);
  check_system(false, "npy: '{}': dtype must be one of {}, got '{}'", path, known, descr);
  __builtin_unreachable();
}

/// The size of the array in the file; throws on overflow before anything is allocated.
std::int64_t checked_bytes(const Shape& shape, const NpyDType& type, const std::string& path) {
  auto bytes = static_cast<std::int64_t>(size_of(type.dtype));
  bool fits = true, empty = false;
  for (const std::int64_t d : shape) {
    empty = empty || d == 0;
    if (d != 0) fits = fits && !__builtin_mul_overflow(bytes, d, &bytes);
  }
  check_system(fits, "npy: '{}': the size of shape {} overflows", path, shape);
  return empty ? 0 : shape.numel() * static_cast<std::int64_t>(type.file_bytes());
}

}  // namespace

Tensor load_npy(const std::string& path) {
  const InputFile file(path);
  unsigned char start[12] = {};
  const std::int64_t size = file.size();
  check_system(size >= 10, "npy: '{}' must have at least 10 bytes, got {}", path, size);
  file.read(0, start, std::min<std::int64_t>(size, 12));
  refuse_foreign(file, "npy");
  check_system(std::memcmp(start, kMagic.data(), kMagic.size()) == 0,
               "npy: '{}' is not a NumPy file", path);
  const int version = start[6];
  check_system(version >= 1 && version <= 3 && start[7] == 0,
               "npy: '{}' must have format 1.0, 2.0 or 3.0, got {}.{}", path, version,
               int{start[7]});
  const std::int64_t header_start = version == 1 ? 10 : 12;
  std::int64_t length = start[8] | start[9] << 8;
  if (version > 1) length |= std::int64_t{start[10]} << 16 | std::int64_t{start[11]} << 24;
  check_system(length <= kMaxNpyHeader && header_start + length <= size,
               "npy: '{}': a header of {} bytes does not fit into a file of {} bytes", path, length,
               size);
  std::string text(static_cast<std::size_t>(length), '\0');
  file.read(header_start, text.data(), length);
  const Header header = HeaderParser(text, path).parse();
  const NpyDType& type = parse_dtype(header.descr, path);
  const DType dtype = type.dtype;
  const std::int64_t bytes = checked_bytes(header.shape, type, path);
  const std::int64_t data = header_start + length;
  check_system(size - data == bytes, "npy: '{}': {} {} needs {} bytes of data, got {}", path,
               type.widen ? std::string(type.text) : std::string(name(dtype)), header.shape, bytes,
               size - data);

  // Fortran order is the row-major order of the reversed axes.
  const int n = header.shape.size();
  Shape stored = header.shape, strides = header.shape;
  if (header.fortran_order)
    for (int i = 0; i < n; ++i) stored[i] = header.shape[n - 1 - i];
  const Tensor out = Tensor::empty(stored, dtype);
  if (bytes > 0) file.read(data, out.raw(), bytes);
  if (bytes > 0 && type.widen) type.widen(out.raw(), out.numel());
  if (bytes > 0 && dtype == DType::boolean)
    for (std::int64_t i = 0; i < bytes; ++i) {
      const int v = static_cast<const unsigned char*>(out.raw())[i];
      check_system(v <= 1, "npy: '{}': a bool must be 0 or 1, got {}", path, v);
    }
  if (!header.fortran_order) return out;
  for (int i = 0; i < n; ++i) strides[i] = out.strides()[n - 1 - i];
  return out.alias(header.shape, strides, 0);
}

void save_npy(const std::string& path, const Tensor& t) {
  check(t.defined(), "save_npy: the tensor is null");
  check(!t.is_meta(), "save_npy: the tensor is on the meta device and has no data");
  const NpyDType* found = nullptr;
  for (const NpyDType& known : kDTypes)
    if (known.dtype == t.dtype() && !known.widen) found = &known;
  check(found != nullptr, "save_npy: NumPy has no dtype for {}; cast it to f32 first", t.dtype());

  std::string header =
      "{'descr': '" + std::string(found->text) + "', 'fortran_order': False, 'shape': (";
  for (int i = 0; i < t.ndim(); ++i) header += (i ? ", " : "") + std::to_string(t.dim(i));
  header += t.ndim() == 1 ? ",), }" : "), }";
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  header += '\n';

  AtomicFile file(path);
  file.write(kMagic);
  file.write(std::string_view("\1\0", 2));
  const auto length = static_cast<std::uint16_t>(header.size());
  file.write(&length, sizeof length);
  file.write(header);
  Tensor plain = t.detach();
  if (!plain.device().is_cpu()) plain = plain.to(kCpu);
  if (!plain.is_contiguous()) plain = plain.contiguous();
  if (t.numel() > 0)
    file.write(plain.raw(), static_cast<std::size_t>(t.numel()) * size_of(t.dtype()));
  file.commit();
}

}  // namespace weft::io
