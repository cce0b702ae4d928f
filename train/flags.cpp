#include "weft/train/flags.h"

#include "weft/core/error.h"
#include "weft/io/json.h"

namespace weft::train::flag_visitors {
namespace {

struct ReservedWord {
  std::string_view flag, word;
};
constexpr ReservedWord kReservedWords[] = {{"optimizer", "muon"}};

}  // namespace

void refuse_reserved(std::string_view flag, std::string_view word, const std::string& known) {
  for (const ReservedWord& r : kReservedWords)
    check(r.flag != flag || r.word != word, "--{}: {} does not exist yet; use {}", flag, word,
          known);
}

void check_text(const std::string& who, const std::string& value) {
  check(io::find_invalid_utf8(value) == std::string::npos, "{} must be UTF-8, got '{}'", who,
        value);
}

}  // namespace weft::train::flag_visitors
