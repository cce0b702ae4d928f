#pragma once
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

namespace weft {

class Shape;
struct Device;
enum class DType : std::uint8_t;

/// Who has to act on an Error. The value is the exit status of the command-line programs.
enum class Fault : std::uint8_t {
  system = 1,      ///< files, memory, a lost rank
  user = 2,        ///< a wrong argument, shape or flag; the text says what to change
  non_finite = 3,  ///< a NaN or an infinity where training needs a number
};

/// The only exception type of the library. Its text reads "op: rule, got value".
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& text, Fault fault = Fault::user)
      : std::runtime_error(text), fault_(fault) {}
  Fault fault() const { return fault_; }

 private:
  Fault fault_;
};

namespace detail {

/// One value for a "{}" of a message. Keeps formatting code out of the headers.
struct MessageArg {
  enum class Kind : std::uint8_t { integer, natural, real, text, shape, dtype, device } kind;
  union {
    std::int64_t integer;
    std::uint64_t natural;
    double real;
    struct {
      const char* data;
      std::size_t size;
    } text;
    const void* object;
  };

  template <std::signed_integral T>
  MessageArg(T v) : kind(Kind::integer), integer(v) {}
  template <std::unsigned_integral T>
  MessageArg(T v) : kind(Kind::natural), natural(v) {}
  MessageArg(double v) : kind(Kind::real), real(v) {}
  MessageArg(std::string_view s) : kind(Kind::text), text{s.data(), s.size()} {}
  MessageArg(const std::string& s) : MessageArg(std::string_view(s)) {}
  MessageArg(const char* s) : MessageArg(std::string_view(s)) {}
  MessageArg(const Shape& s) : kind(Kind::shape), object(&s) {}
  MessageArg(const DType& t) : kind(Kind::dtype), object(&t) {}
  MessageArg(const Device& d) : kind(Kind::device), object(&d) {}
};

std::string format_message(std::string_view format, std::initializer_list<MessageArg> args);
[[noreturn]] void raise(Fault fault, const char* format, std::initializer_list<MessageArg> args);

}  // namespace detail

/// Throws Error when `ok` is false. A function rather than a macro, so that debuggers can step into
/// it. Each "{}" of `format` takes one argument: a number, text, Shape, DType or Device.
template <class... Args>
inline void check(bool ok, const char* format, const Args&... args) {
  if (!ok) [[unlikely]]
    detail::raise(Fault::user, format, {detail::MessageArg(args)...});
}

/// Like check(), for failures of files, memory and other machines (Fault::system).
template <class... Args>
inline void check_system(bool ok, const char* format, const Args&... args) {
  if (!ok) [[unlikely]]
    detail::raise(Fault::system, format, {detail::MessageArg(args)...});
}

/// Text for a log line, with the same "{}" rules as check().
template <class... Args>
inline std::string message(const char* format, const Args&... args) {
  return detail::format_message(format, {detail::MessageArg(args)...});
}

/// Receives the library's warnings and slow-path notices. Default: no handler.
using LogHandler = void (*)(std::string_view line);
void set_log_handler(LogHandler handler);
void log_line(std::string_view line);

}  // namespace weft
