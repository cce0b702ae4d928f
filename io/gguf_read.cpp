#include <algorithm>
#include <cstring>
#include <set>

#include "weft/core/error.h"
#include "weft/io/gguf.h"
#include "weft/io/json.h"

namespace weft::io {
namespace {

constexpr std::int64_t kMostEntries = 1'000'000, kMostStrings = 16'000'000;
constexpr std::int64_t kMostName = 65'535, kMostAxes = 4;
constexpr std::int64_t kMostText = std::int64_t{1} << 20;    ///< longer ones stay in the file
constexpr std::int64_t kMostKept = std::int64_t{256} << 20;  ///< bytes of all names and texts

/// Types of values, by their numbers; bytes 0: a string or an array.
struct ValueType {
  const char* name;
  std::int64_t bytes;
};
constexpr ValueType kValueTypes[] = {
    {"u8", 1},   {"i8", 1},     {"u16", 2},   {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4},
    {"bool", 1}, {"string", 0}, {"array", 0}, {"u64", 8}, {"i64", 8}, {"f64", 8}};
constexpr std::uint32_t kTextCode = 8, kArrayCode = 9;

/// Types of tensors, by their numbers; block 0: there is none of this number.
struct TensorType {
  const char* name;
  std::int64_t block, bytes;
};
constexpr TensorType kTensorTypes[] = {
    {"f32", 1, 4},        {"f16", 1, 2},       {"q4_0", 32, 18},     {"q4_1", 32, 20},
    {"", 0, 0},           {"", 0, 0},          {"q5_0", 32, 22},     {"q5_1", 32, 24},
    {"q8_0", 32, 34},     {"q8_1", 32, 40},    {"q2_k", 256, 84},    {"q3_k", 256, 110},
    {"q4_k", 256, 144},   {"q5_k", 256, 176},  {"q6_k", 256, 210},   {"q8_k", 256, 292},
    {"iq2_xxs", 256, 66}, {"iq2_xs", 256, 74}, {"iq3_xxs", 256, 98}, {"iq1_s", 256, 50},
    {"iq4_nl", 32, 18},   {"iq3_s", 256, 110}, {"iq2_s", 256, 82},   {"iq4_xs", 256, 136},
    {"i8", 1, 1},         {"i16", 1, 2},       {"i32", 1, 4},        {"i64", 1, 8},
    {"f64", 1, 8},        {"iq1_m", 256, 56},  {"bf16", 1, 2},       {"", 0, 0},
    {"", 0, 0},           {"", 0, 0},          {"tq1_0", 256, 54},   {"tq2_0", 256, 66},
    {"", 0, 0},           {"", 0, 0},          {"", 0, 0},           {"mxfp4", 32, 17},
    {"nvfp4", 64, 36},    {"q1_0", 128, 18}};

const TensorType* tensor_type(std::uint32_t type) {
  return type < std::size(kTensorTypes) && kTensorTypes[type].block > 0 ? &kTensorTypes[type]
                                                                        : nullptr;
}

}  // namespace

/// Reads a file from front to end by way of a window of it.
class GgufCursor {
 public:
  explicit GgufCursor(const InputFile& file, std::int64_t at = 0) : file_(file), at_(at) {}

  std::int64_t at() const { return at_; }
  std::int64_t left() const { return file_.size() - at_; }
  template <class... Args>
  void require(bool ok, const char* rule, const Args&... args) const {
    if (!ok) [[unlikely]]
      check(false, "gguf: '{}': {}", file_.path(), message(rule, args...));
  }
  void take(void* out, std::int64_t bytes) {
    require(bytes <= left(), "ends at byte {} within a value", file_.size());
    constexpr std::int64_t kWindow = 1 << 16;
    if (bytes > kWindow / 2) {
      file_.read(at_, out, bytes);
    } else if (bytes > 0) {
      if (at_ < begin_ || at_ + bytes > begin_ + static_cast<std::int64_t>(window_.size())) {
        begin_ = at_;
        window_.resize(static_cast<std::size_t>(std::min(kWindow, left())));
        file_.read(begin_, window_.data(), static_cast<std::int64_t>(window_.size()));
      }
      std::memcpy(out, window_.data() + (at_ - begin_), static_cast<std::size_t>(bytes));
    }
    at_ += bytes;
  }
  void skip(std::int64_t bytes) {
    require(bytes <= left(), "ends at byte {} within a value", file_.size());
    at_ += bytes;
  }
  template <class T>
  T number() {
    T v{};
    take(&v, sizeof v);
    return v;
  }
  /// The length of a text that ends within the file.
  std::int64_t length() {
    const auto bytes = number<std::uint64_t>();
    require(bytes <= static_cast<std::uint64_t>(left()),
            "a text of {} bytes at byte {} ends outside of the file", bytes, at_);
    return static_cast<std::int64_t>(bytes);
  }
  std::string text(std::int64_t most) {
    const std::int64_t bytes = length();
    require(bytes <= most, "the text at byte {} must have at most {} bytes, got {}", at_, most,
            bytes);
    std::string out(static_cast<std::size_t>(bytes), '\0');
    take(out.data(), bytes);
    return out;
  }

 private:
  const InputFile& file_;
  std::int64_t at_, begin_ = 0;
  std::string window_;  ///< the bytes of the file from begin_
};

std::string gguf_type_name(std::uint32_t type) {
  const TensorType* const known = tensor_type(type);
  return known ? known->name : message("type {}", std::int64_t{type});
}

std::int64_t gguf_bytes(std::uint32_t type, std::int64_t rows, std::int64_t columns) {
  const TensorType* const known = tensor_type(type);
  if (!known || columns % known->block != 0) return -1;
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(rows, columns / known->block, &bytes)) return -1;
  return __builtin_mul_overflow(bytes, known->bytes, &bytes) ? -1 : bytes;
}

/// Reads the header.
class GgufFile::Reader {
 public:
  explicit Reader(GgufFile& out) : out_(out), in_(out.file_) {}

  void read() {
    require(in_.left() >= 24 && in_.number<std::uint32_t>() == 0x46554747,
            "must begin with \"GGUF\"");
    out_.version_ = in_.number<std::uint32_t>();
    require(out_.version_ == 2 || out_.version_ == 3, "the version must be 2 or 3, got {}",
            std::int64_t{out_.version_});
    const std::int64_t tensors = count("tensors", 24), entries = count("metadata values", 12);
    for (std::int64_t i = 0; i < entries; ++i) read_entry();
    for (std::int64_t i = 0; i < tensors; ++i) read_info();
    check_layout();
  }

 private:
  template <class... Args>
  void require(bool ok, const char* rule, const Args&... args) const {
    in_.require(ok, rule, args...);
  }
  // How many there are, each of at least so many bytes.
  std::int64_t count(const char* what, std::int64_t bytes) {
    const auto n = in_.number<std::uint64_t>();
    const std::int64_t most = std::min(kMostEntries, in_.left() / bytes);
    require(n <= static_cast<std::uint64_t>(most), "at most {} {} fit into the file, got {}", most,
            what, n);
    return static_cast<std::int64_t>(n);
  }

  void keep(const std::string& text) {
    kept_ += static_cast<std::int64_t>(text.size());
    require(kept_ <= kMostKept, "names and texts must have at most {} bytes", kMostKept);
  }

  const ValueType& value_type(std::uint32_t type, const std::string& key) const {
    require(type < std::size(kValueTypes), "{}: a value must have type 0 to {}, got {}",
            json_quote(key), std::size(kValueTypes) - 1, std::int64_t{type});
    return kValueTypes[type];
  }

  std::string new_name(std::set<std::string>& names, const char* of) {
    std::string name = in_.text(kMostName);
    keep(name);
    require(names.insert(name).second, "two {} are called {}", of, json_quote(name));
    return name;
  }

  void read_entry() {
    Entry e;
    e.key = new_name(keys_, "values");
    const auto type = in_.number<std::uint32_t>();
    e.type = value_type(type, e.key).name;
    e.at = in_.at();
    if (type == kArrayCode)
      read_array(e);
    else if (type == kTextCode)
      read_text(e);
    else
      e.value = scalar(type);
    out_.entries_.push_back(std::move(e));
  }

  void read_text(Entry& e) {
    const std::int64_t bytes = in_.length();
    std::string value(static_cast<std::size_t>(bytes <= kMostText ? bytes : 0), '\0');
    if (bytes <= kMostText)
      in_.take(value.data(), bytes);
    else
      in_.skip(bytes);
    keep(value);
    e.value = bytes <= kMostText ? std::move(value) : message("({} bytes)", bytes);
  }

  void read_array(Entry& e) {
    const auto type = in_.number<std::uint32_t>();
    const ValueType& of = value_type(type, e.key);
    require(type != kArrayCode, "{}: an array of arrays is not supported", json_quote(e.key));
    e.type = message("{} array", of.name);
    const auto n = in_.number<std::uint64_t>();
    const std::int64_t least = of.bytes > 0 ? of.bytes : 8;
    require(n <= static_cast<std::uint64_t>(in_.left() / least),
            "{}: an array of {} values does not fit into the file", json_quote(e.key), n);
    e.count = static_cast<std::int64_t>(n);
    if (of.bytes > 0) return in_.skip(e.count * of.bytes);
    require(e.count <= kMostStrings, "{}: an array must have at most {} strings, got {}",
            json_quote(e.key), kMostStrings, e.count);
    for (std::int64_t i = 0; i < e.count; ++i) in_.skip(in_.length());
  }

  GgufValue scalar(std::uint32_t type) {
    switch (type) {
      case 0:
        return std::int64_t{in_.number<std::uint8_t>()};
      case 1:
        return std::int64_t{in_.number<std::int8_t>()};
      case 2:
        return std::int64_t{in_.number<std::uint16_t>()};
      case 3:
        return std::int64_t{in_.number<std::int16_t>()};
      case 4:
        return in_.number<std::uint32_t>();
      case 5:
        return std::int64_t{in_.number<std::int32_t>()};
      case 6:
        return in_.number<float>();
      case 7:
        return in_.number<std::uint8_t>() != 0;
      case 12:
        return in_.number<double>();
      default:
        return in_.number<std::int64_t>();  // u64 and i64
    }
  }

  void read_info() {
    Info t;
    t.name = new_name(names_, "tensors");
    const auto axes = in_.number<std::uint32_t>();
    require(axes <= kMostAxes, "tensor {} must have at most {} axes, got {}", json_quote(t.name),
            kMostAxes, std::int64_t{axes});
    Shape dims = Shape::filled(static_cast<int>(axes), 0);
    std::int64_t rows = 1, product = 1;
    bool fits = true;
    for (int i = dims.size() - 1; i >= 0; --i) {
      const auto n = in_.number<std::int64_t>();
      fits = fits && n >= 0;
      dims[i] = n;
      // An empty axis does not excuse an overflow of the others.
      if (n != 0) fits = fits && !__builtin_mul_overflow(product, n, &product);
      if (i + 1 < dims.size()) rows = fits ? rows * n : 0;
    }
    t.type = in_.number<std::uint32_t>();
    require(tensor_type(t.type) != nullptr, "tensor {} has {}, which is not known",
            json_quote(t.name), gguf_type_name(t.type));
    t.bytes = fits ? gguf_bytes(t.type, rows, axes > 0 ? dims.back() : 1) : -1;
    require(t.bytes >= 0, "tensor {} must have rows of whole blocks and a size below 2^63 bytes",
            json_quote(t.name));
    t.shape = dims;
    const auto offset = in_.number<std::uint64_t>();
    require(offset <= static_cast<std::uint64_t>(size_), "tensor {} begins outside of the file",
            json_quote(t.name));
    t.begin = static_cast<std::int64_t>(offset);
    out_.tensors_.push_back(std::move(t));
  }

  void check_layout() {
    std::int64_t alignment = 32;
    if (const Entry* const given = out_.find("general.alignment")) {
      const auto* const n = std::get_if<std::uint32_t>(&given->value);
      require(n && *n > 0 && *n <= 1 << 20 && *n % 8 == 0,
              "general.alignment must be a multiple of 8 up to 1048576");
      alignment = *n;
    }
    const std::int64_t data = (in_.at() + alignment - 1) / alignment * alignment;
    std::vector<const Info*> order;
    for (Info& t : out_.tensors_) {
      require(t.begin % alignment == 0, "tensor {} must begin at a multiple of {}, got {}",
              json_quote(t.name), alignment, t.begin);
      t.begin += data;
      require(t.begin <= size_ && t.bytes <= size_ - t.begin, "tensor {} ends outside of the file",
              json_quote(t.name));
      order.push_back(&t);
    }
    std::sort(order.begin(), order.end(), [](const Info* a, const Info* b) {
      return std::pair(a->begin, a->bytes) < std::pair(b->begin, b->bytes);
    });
    for (std::size_t i = 1; i < order.size(); ++i)
      require(order[i - 1]->begin + order[i - 1]->bytes <= order[i]->begin,
              "tensors {} and {} overlap", json_quote(order[i - 1]->name),
              json_quote(order[i]->name));
  }

  GgufFile& out_;
  GgufCursor in_;
  const std::int64_t size_ = out_.file_.size();
  std::int64_t kept_ = 0;
  std::set<std::string> keys_, names_;
};

GgufFile GgufFile::open(const std::string& path) {
  GgufFile file{InputFile(path)};
  Reader(file).read();
  return file;
}

const GgufFile::Entry* GgufFile::find(std::string_view key) const {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
  return found == entries_.end() ? nullptr : &*found;
}

std::vector<std::string> GgufFile::strings(const Entry& array) const {
  check(array.type == "string array", "gguf: '{}': {} must be an array of strings, got {}",
        file_.path(), json_quote(array.key), array.type);
  GgufCursor in(file_, array.at + 12);
  std::vector<std::string> all;
  for (std::int64_t i = 0; i < array.count; ++i) all.push_back(in.text(kMostText));
  return all;
}

std::string GgufFile::data(const Info& tensor) const {
  std::string out(static_cast<std::size_t>(tensor.bytes), '\0');
  file_.read(tensor.begin, out.data(), tensor.bytes);
  return out;
}

}  // namespace weft::io
