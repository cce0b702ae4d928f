#include <algorithm>
#include <cmath>
#include <cstring>

#include "weft/core/error.h"
#include "weft/core/low_precision.h"
#include "weft/io/gguf.h"

namespace weft::io {
namespace {

constexpr std::int64_t kDataAlignment = 32;

/// The bytes of a header.
class HeaderBytes {
 public:
  template <class T>
  void put(T v) {
    static_assert(std::is_arithmetic_v<T>);
    char raw[sizeof v];
    std::memcpy(raw, &v, sizeof v);
    all_.append(raw, sizeof v);
  }
  void put(const std::string& text) {
    put(std::uint64_t{text.size()});
    all_ += text;
  }
  void pad() { all_.resize((all_.size() + kDataAlignment - 1) / kDataAlignment * kDataAlignment); }
  const std::string& all() const { return all_; }

 private:
  std::string all_;
};

// The number of a value's type in files.
std::uint32_t value_code(bool) { return 7; }
std::uint32_t value_code(std::uint32_t) { return 4; }
std::uint32_t value_code(std::int32_t) { return 5; }
std::uint32_t value_code(std::int64_t) { return 11; }
std::uint32_t value_code(float) { return 6; }
std::uint32_t value_code(double) { return 12; }
std::uint32_t value_code(const std::string&) { return 8; }
constexpr std::uint32_t kListCode = 9;

struct PutValue {
  HeaderBytes& out;

  template <class T>
  void operator()(const T& v) const {
    out.put(value_code(v));
    out.put(v);
  }
  template <class T>
  void operator()(const std::vector<T>& values) const {
    out.put(kListCode);
    out.put(value_code(T{}));
    out.put(std::uint64_t{values.size()});
    for (const T& v : values) out.put(v);
  }
};

std::int64_t columns_of(const Shape& shape) { return shape.empty() ? 1 : shape.back(); }

std::int64_t bytes_of(const GgufTensor& t) {
  const std::int64_t columns = columns_of(t.shape), all = t.shape.numel();
  return gguf_bytes(static_cast<std::uint32_t>(t.type), columns > 0 ? all / columns : 0, columns);
}

Tensor as(const Tensor& t, DType dtype) { return t.dtype() == dtype ? t : t.to(dtype); }

// A finite value must not become an infinity; `most` is the largest number of the type.
void check_range(const Tensor& values, double most, const char* type, const std::string& name) {
  const Tensor x = as(values, DType::f32);
  for (const float v : std::span(x.data<float>(), static_cast<std::size_t>(x.numel())))
    check(!(std::isfinite(v) && std::abs(v) > most),
          "gguf: tensor {} must have values up to {} for {}, got {}; use bf16 or f32", name, most,
          type, static_cast<double>(v));
}

constexpr double kMostF16 = 65504;

void write_piece(AtomicFile& file, const Tensor& piece, const GgufTensor& t) {
  // Rounded once, to f32, on the way to every type.
  const bool is_wide = piece.dtype() == DType::f64;
  const Tensor values = (is_wide ? piece.to(DType::f32) : piece).contiguous();
  if (t.type == GgufType::q8_0) {
    const Tensor x = as(values, DType::f32);
    const std::span<const float> all(x.data<float>(), static_cast<std::size_t>(x.numel()));
    check(std::all_of(all.begin(), all.end(), [](float v) { return std::isfinite(v); }),
          "gguf: tensor {} has a value that is not finite, which q8_0 cannot hold", t.name);
    check_range(x, 127 * kMostF16, "q8_0", t.name);
    file.write(gguf_q8_0(all));
    return;
  }
  const DType dtype = t.type == GgufType::f32   ? DType::f32
                      : t.type == GgufType::f16 ? DType::f16
                                                : DType::bf16;
  if (dtype == DType::f16 && values.dtype() != dtype) check_range(values, kMostF16, "f16", t.name);
  const Tensor x = as(values, dtype);
  file.write(x.raw(), static_cast<std::size_t>(x.numel()) * size_of(dtype));
}

}  // namespace

std::string gguf_q8_0(std::span<const float> values) {
  std::string out;
  out.reserve(values.size() / kGgufBlock * (kGgufBlock + 2));
  for (std::size_t first = 0; first < values.size(); first += kGgufBlock) {
    const std::span<const float> block = values.subspan(first, kGgufBlock);
    float most = 0;
    for (const float v : block) most = std::max(most, std::abs(v));
    // Division, then multiplication by the reciprocal, as the reference rounds; the reciprocal of
    // the smallest factors is infinite.
    const float factor = most / 127, inverse = 1 / factor;
    const float scale = std::isfinite(inverse) ? inverse : 0;
    const f16 narrow(factor);
    char raw[2];
    std::memcpy(raw, &narrow.bits, sizeof raw);
    out.append(raw, sizeof raw);
    for (const float v : block)
      out += static_cast<char>(static_cast<std::int8_t>(std::round(v * scale)));
  }
  return out;
}

FileSummary write_gguf(const std::string& path, const GgufMetadata& metadata,
                       const std::vector<GgufTensor>& tensors) {
  HeaderBytes header;
  header.put(std::uint32_t{0x46554747});  // "GGUF"
  header.put(std::uint32_t{3});
  header.put(std::uint64_t{tensors.size()});
  header.put(std::uint64_t{metadata.size()});
  for (const auto& [key, value] : metadata) {
    header.put(key);
    std::visit(PutValue{header}, value);
  }
  std::int64_t offset = 0;
  for (const GgufTensor& t : tensors) {
    const std::int64_t bytes = bytes_of(t);
    check(bytes >= 0, "gguf: the rows of tensor {} must be a multiple of {} for q8_0, got {}",
          t.name, kGgufBlock, columns_of(t.shape));
    header.put(t.name);
    header.put(static_cast<std::uint32_t>(t.shape.size()));
    for (int i = t.shape.size() - 1; i >= 0; --i)
      header.put(static_cast<std::uint64_t>(t.shape[i]));
    header.put(static_cast<std::uint32_t>(t.type));
    header.put(static_cast<std::uint64_t>(offset));
    offset += (bytes + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
  }
  header.pad();

  AtomicFile file(path);
  file.write(header.all());
  for (const GgufTensor& t : tensors) {
    std::int64_t values = 0;
    for (const auto& read : t.pieces) {
      const Tensor piece = read().detach();
      check(piece.numel() % std::max<std::int64_t>(columns_of(t.shape), 1) == 0,
            "gguf: a piece of tensor {} must have whole rows of {}, got {}", t.name,
            columns_of(t.shape), piece.shape());
      write_piece(file, piece, t);
      values += piece.numel();
    }
    check(values == t.shape.numel(), "gguf: the pieces of tensor {} must have {} values, got {}",
          t.name, t.shape.numel(), values);
    const std::int64_t bytes = bytes_of(t),
                       rest = (kDataAlignment - bytes % kDataAlignment) % kDataAlignment;
    file.write(std::string(static_cast<std::size_t>(rest), '\0'));
  }
  return file.commit();
}

}  // namespace weft::io
