#include "weft/io/safetensors.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "weft/core/error.h"
#include "weft/io/foreign.h"
#include "weft/io/json.h"
#include "weft/io/safetensors_format.h"

namespace weft::io {
namespace {

constexpr const char* kReadable = "BOOL U8 I8 F8_E5M2 F8_E4M3 I16 U16 F16 BF16 I32 U32 F32 F64 I64";

/// A name that is quoted only when it is printed.
struct Named {
  std::string_view name;
};
std::string shown(const Named& q) { return json_quote(q.name); }
template <class T>
const T& shown(const T& v) {
  return v;
}

}  // namespace

/// Validates one header and fills a SafetensorsFile from it.
class SafetensorsHeader {
 public:
  explicit SafetensorsHeader(SafetensorsFile& out) : out_(out) {}

  void read(const SafetensorsIndex& index) {
    const std::string& text = index.header;
    const std::int64_t size = index.file_bytes;
    out_.file_bytes_ = size;
    out_.data_start_ = kLengthBytes + static_cast<std::int64_t>(text.size());
    out_.entries_.reserve(occurrences(text, "\"data_offsets\""));
    std::vector<std::uint32_t> starts;  // offset of each entry in the text
    bool has_metadata = false;
    const std::string what = message("safetensors: '{}': header", out_.path());
    const auto member = [&](const std::string& key, Json value, std::size_t byte) {
      if (key != kMetadataKey) {
        read_entry(key, value);
        starts.push_back(static_cast<std::uint32_t>(byte));
        return;
      }
      if (has_metadata) repeated(kMetadataKey, byte);
      has_metadata = true;
      read_metadata(std::move(value));
    };
    require(Json::each_member(text, what, member), "the header must be a JSON object");
    sort_names(starts);
    check_layout(size - out_.data_start_);
  }

 private:
  template <class... Args>
  void require(bool ok, const char* rule, const Args&... args) const {
    if (!ok) [[unlikely]]
      check_system(false, "safetensors: '{}': {}", out_.path(), message(rule, shown(args)...));
  }

  static std::size_t occurrences(std::string_view text, std::string_view part) {
    std::size_t n = 0;
    for (std::size_t at = text.find(part); at != std::string_view::npos;
         at = text.find(part, at + part.size()))
      ++n;
    return n;
  }

  void repeated(std::string_view name, std::size_t byte) const {
    require(false, "header: duplicate key {} at byte {}", json_quote(name), byte);
  }

  void read_metadata(Json v) {
    require(v.is_object(), "__metadata__ must be an object");
    for (JsonMember& m : v.take_members()) {
      require(m.value.is_string(), "__metadata__ value {} must be a string", json_quote(m.key));
      out_.metadata_.emplace(std::move(m.key), m.value.take_string());
    }
  }

  void read_entry(const std::string& name, const Json& v) {
    const Named q{name};
    const Json* dtype = v.find("dtype");
    const Json* shape = v.find("shape");
    const Json* offsets = v.find("data_offsets");
    require(dtype && shape && offsets && v.members().size() == 3,
            "tensor {} must have exactly dtype, shape and data_offsets", q);
    SafetensorsFile::Entry e;
    e.dtype = read_dtype(q, *dtype);
    const Shape dims = read_shape(q, *shape);
    require(offsets->is_array() && offsets->items().size() == 2 && is_count(offsets->items()[0]) &&
                is_count(offsets->items()[1]),
            "tensor {}: data_offsets must be two non-negative integers", q);
    e.begin = offsets->items()[0].as_int();
    e.end = offsets->items()[1].as_int();
    require(e.begin <= e.end, "tensor {}: data_offsets [{}, {}] must not decrease", q, e.begin,
            e.end);
    const FileDType& type = kFileDTypes[e.dtype];
    const std::int64_t bytes = checked_bytes(q, dims, type);
    require(e.end - e.begin == bytes, "tensor {}: {} {} needs {} bytes, data_offsets give {}", q,
            type.name, dims, bytes, e.end - e.begin);
    // Names and axes are shorter than their text, which is below 2^32 bytes.
    e.name = static_cast<std::uint32_t>(out_.names_.size());
    e.name_bytes = static_cast<std::uint32_t>(name.size());
    out_.names_ += name;
    e.axes = static_cast<std::uint32_t>(out_.axes_.size());
    e.ndim = static_cast<std::uint8_t>(dims.size());
    out_.axes_.insert(out_.axes_.end(), dims.begin(), dims.end());
    out_.entries_.push_back(e);
  }

  static bool is_count(const Json& v) { return v.is_int() && v.as_int() >= 0; }

  std::uint8_t read_dtype(const Named& q, const Json& v) const {
    require(v.is_string(), "tensor {}: dtype must be a string", q);
    const auto* found = std::find_if(std::begin(kFileDTypes), std::end(kFileDTypes),
                                     [&](const FileDType& f) { return f.name == v.as_string(); });
    if (found == std::end(kFileDTypes)) {
      std::string known;
      for (const FileDType& f : kFileDTypes)
        known += (known.empty() ? "" : " ") + std::string(f.name);
      require(false, "tensor {}: dtype {} is not one of {}", q, json_quote(v.as_string()), known);
    }
    return static_cast<std::uint8_t>(found - std::begin(kFileDTypes));
  }

  Shape read_shape(const Named& q, const Json& v) const {
    require(v.is_array(), "tensor {}: shape must be an array", q);
    require(v.items().size() <= kMaxDims, "tensor {}: shape must have at most {} axes, got {}", q,
            kMaxDims, v.items().size());
    Shape shape;
    for (const Json& d : v.items()) {
      require(is_count(d), "tensor {}: shape must hold non-negative integers", q);
      shape.push_back(d.as_int());
    }
    return shape;
  }

  /// Size in bytes from dtype and shape. A zero axis does not excuse an overflow of the others.
  std::int64_t checked_bytes(const Named& q, const Shape& shape, const FileDType& type) const {
    std::int64_t elements = 1, bits = 0;
    bool fits = true;
    bool empty = false;
    for (const std::int64_t d : shape) {
      empty = empty || d == 0;
      if (d != 0) fits = fits && !__builtin_mul_overflow(elements, d, &elements);
    }
    require(fits, "tensor {}: the product of shape {} overflows", q, shape);
    fits = !__builtin_mul_overflow(elements, std::int64_t{type.bits}, &bits);
    require(fits, "tensor {}: the size of shape {} in bits overflows", q, shape);
    if (empty) bits = 0;
    require(bits % 8 == 0, "tensor {}: {} {} does not fill whole bytes", q, type.name, shape);
    return bits / 8;
  }

  /// `starts`: the byte offset of each entry in the header.
  void sort_names(const std::vector<std::uint32_t>& starts) {
    std::vector<std::uint32_t>& order = out_.by_name_;
    order.resize(out_.entries_.size());
    std::iota(order.begin(), order.end(), 0U);
    sort_by_name();
    std::uint32_t first = UINT32_MAX;  // offset of the first repeated name
    std::string_view name;
    for (std::size_t i = 1; i < order.size(); ++i) {
      if (out_.name(order[i - 1]) != out_.name(order[i])) continue;
      const std::uint32_t later = std::max(starts[order[i - 1]], starts[order[i]]);
      if (later < first) name = out_.name(order[i]);
      first = std::min(first, later);
    }
    if (first != UINT32_MAX) repeated(name, first);
  }

  void sort_by_name() {
    std::sort(out_.by_name_.begin(), out_.by_name_.end(), [&](std::uint32_t a, std::uint32_t b) {
      const int c = out_.name(a).compare(out_.name(b));
      return c != 0 ? c < 0 : a < b;
    });
  }

  void check_layout(std::int64_t data_bytes) {
    auto& entries = out_.entries_;
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::int64_t end = 0;
    for (const auto& e : entries) {
      require(e.begin == end, "tensor {} must begin at byte {} of the data, where {}, got {}",
              Named{out_.name_of(e)}, end, end == 0 ? "the data begin" : "the one before ends",
              e.begin);
      end = e.end;
    }
    require(end == data_bytes, "the tensors end at byte {} of the data, the file at byte {}", end,
            data_bytes);
    sort_by_name();  // the positions have changed
  }

  SafetensorsFile& out_;
};

namespace {

SafetensorsIndex index_of(const InputFile& file) {
  const auto require = [&file](bool ok, const char* rule, const auto&... args) {
    if (!ok) [[unlikely]]
      check_system(false, "safetensors: '{}': {}", file.path(), message(rule, args...));
  };
  SafetensorsIndex index{file.size(), {}};
  require(index.file_bytes >= kLengthBytes, "the file must have at least 8 bytes, got {}",
          index.file_bytes);
  std::uint64_t length = 0;
  file.read(0, &length, kLengthBytes);
  const std::int64_t most = index.file_bytes - kLengthBytes;
  if (length > kMaxHeader || length > static_cast<std::uint64_t>(most))
    refuse_foreign(file, "safetensors");
  require(length <= kMaxHeader, "the header must have at most {} bytes, got {}", kMaxHeader,
          length);
  require(static_cast<std::int64_t>(length) <= most,
          "a header of {} bytes does not fit into a file of {} bytes", length, index.file_bytes);
  index.header.resize(static_cast<std::size_t>(length));
  file.read(kLengthBytes, index.header.data(), static_cast<std::int64_t>(length));
  return index;
}

}  // namespace

SafetensorsIndex SafetensorsFile::read_index(const std::string& path) {
  return index_of(InputFile(path));
}

// By value: its text takes as much memory as the result, and is not needed any longer.
SafetensorsFile SafetensorsFile::of_index(const std::string& path, SafetensorsIndex index) {
  SafetensorsFile file(path);
  SafetensorsHeader(file).read(index);
  return file;
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  InputFile opened(path);
  SafetensorsFile file = of_index(path, index_of(opened));
  file.file_ = std::move(opened);
  return file;
}

const InputFile& SafetensorsFile::file() const {
  if (!file_) {
    file_.emplace(path_);
    check_system(file_->size() == file_bytes_,
                 "safetensors: '{}' must have {} bytes as when it was listed, got {}", path_,
                 file_bytes_, file_->size());
  }
  return *file_;
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> out;
  out.reserve(entries_.size());
  for (const Entry& e : entries_) out.emplace_back(name_of(e));
  return out;
}

std::size_t SafetensorsFile::find(std::string_view name) const {
  const auto found =
      std::lower_bound(by_name_.begin(), by_name_.end(), name,
                       [&](std::uint32_t i, std::string_view n) { return this->name(i) < n; });
  return found != by_name_.end() && this->name(*found) == name ? *found : size();
}

const SafetensorsFile::Entry& SafetensorsFile::entry(const std::string& name) const {
  const std::size_t found = find(name);
  check(found < size(), "safetensors: '{}': no tensor {}", path(), json_quote(name));
  return entries_[found];
}

DType SafetensorsFile::dtype_of_entry(const Entry& e) const {
  const FileDType& f = kFileDTypes[e.dtype];
  check(f.dtype.has_value(), "safetensors: '{}': tensor {}: dtype must be one of {}, got {}",
        path(), json_quote(name_of(e)), kReadable, f.name);
  return *f.dtype;
}

Shape SafetensorsFile::shape_of(const Entry& e) const {
  const auto first = axes_.begin() + e.axes;
  return Shape(first, first + e.ndim);
}

Shape SafetensorsFile::shape(const std::string& name) const { return shape_of(entry(name)); }

DType SafetensorsFile::dtype(const std::string& name) const { return dtype_of_entry(entry(name)); }

Tensor SafetensorsFile::tensor(const std::string& name) const {
  const Entry& e = entry(name);
  Tensor out = Tensor::empty(shape_of(e), dtype_of_entry(e));
  read_data(e, 0, out);
  return out;
}

void SafetensorsFile::read_into(const std::string& name, const Tensor& out) const {
  const Entry& e = entry(name);
  check(shape_of(e) == out.shape(), "safetensors: '{}': tensor {} must have shape {}, got {}",
        path(), json_quote(name), out.shape(), shape_of(e));
  if (out.device().is_cpu() && out.is_contiguous() && out.dtype() == dtype_of_entry(e)) {
    read_data(e, 0, out);
    out.bump_version();
  } else {
    out.copy_(tensor(name));
  }
}

void SafetensorsFile::read_elements(const std::string& name, std::int64_t first,
                                    const Tensor& out) const {
  const Entry& e = entry(name);
  const std::int64_t all = shape_of(e).numel();
  check(0 <= first && first <= all && out.numel() <= all - first,
        "safetensors: '{}': tensor {} must have elements {} to {}, got {}", path(),
        json_quote(name), first, first + out.numel(), all);
  check(out.device().is_cpu() && out.is_contiguous() && out.dtype() == dtype_of_entry(e),
        "safetensors: '{}': tensor {} must be read into contiguous {} on the CPU, got {} on {}",
        path(), json_quote(name), dtype_of_entry(e), out.dtype(), out.device());
  read_data(e, first, out);
  out.bump_version();
}

void SafetensorsFile::read_data(const Entry& e, std::int64_t first, const Tensor& out) const {
  if (out.numel() == 0) return;
  const std::int64_t width = kFileDTypes[e.dtype].bits / 8;
  file().read(data_start_ + e.begin + first * width, out.raw(), out.numel() * width);
  if (const Widen widen = kFileDTypes[e.dtype].widen) widen(out.raw(), out.numel());
  if (out.dtype() != DType::boolean) return;
  // A bool with another bit pattern would be undefined behaviour for every later reader.
  const auto* bytes = static_cast<const unsigned char*>(out.raw());
  for (std::int64_t i = 0; i < out.numel(); ++i)
    check_system(bytes[i] <= 1, "safetensors: '{}': tensor {}: BOOL must be 0 or 1, got {}", path(),
                 json_quote(name_of(e)), std::int64_t{bytes[i]});
}

StateDict load_safetensors(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  StateDict out;
  for (const std::string& name : file.names()) out.emplace(name, file.tensor(name));
  return out;
}

}  // namespace weft::io
