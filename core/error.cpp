#include "weft/core/error.h"

#include <atomic>
#include <charconv>

#include "weft/core/message_object.h"

namespace weft {
namespace {

std::atomic<LogHandler> log_handler{nullptr};

template <class T>
void append_number(std::string& out, T v) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, v).ptr;
  out.append(buffer, end);
}

void append(std::string& out, const detail::MessageArg& a) {
  using Kind = detail::MessageArg::Kind;
  switch (a.kind) {
    case Kind::integer:
      return append_number(out, a.integer);
    case Kind::natural:
      return append_number(out, a.natural);
    case Kind::real:
      return append_number(out, a.real);
    case Kind::text:
      out.append(a.text.data, a.text.size);
      return;
    case Kind::dtype:
    case Kind::device:
    case Kind::shape:
      if (detail::append_object) detail::append_object(out, a);
      return;
  }
}

}  // namespace

void (*detail::append_object)(std::string& out, const MessageArg& arg) = nullptr;

std::string detail::format_message(std::string_view format,
                                   std::initializer_list<MessageArg> args) {
  std::string out;
  auto next = args.begin();
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format.substr(i, 2) == "{}" && next != args.end()) {
      append(out, *next++);
      ++i;
    } else {
      out += format[i];
    }
  }
  return out;
}

void detail::raise(Fault fault, const char* format, std::initializer_list<MessageArg> args) {
  throw Error(format_message(format, args), fault);
}

void set_log_handler(LogHandler handler) { log_handler = handler; }

void log_line(std::string_view line) {
  if (const LogHandler handler = log_handler) handler(line);
}

}  // namespace weft
