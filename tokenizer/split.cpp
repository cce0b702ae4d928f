#include "weft/tokenizer/split.h"

#include <iterator>

namespace weft::tokenizer {
namespace {

struct Known {
  Split split;
  const char* name;
  std::string_view regex;
};

#define WEFT_SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WEFT_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define WEFT_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define WEFT_LEAD "[^\\r\\n\\p{L}\\p{N}]?"
#define WEFT_END "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

// The first of a split is the one that is written.
constexpr Known kKnown[] = {
    {Split::gpt2, "gpt2",
     "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {Split::gpt2, "gpt2",
     "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {Split::gpt2, "gpt2",
     "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+(?!\\S)|\\s"},
    {Split::cl100k, "cl100k",
     WEFT_SUFFIX "|" WEFT_LEAD "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" WEFT_END},
    {Split::cl100k, "cl100k",
     "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"},
    {Split::gpt4, "gpt4",
     "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| "
     "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s"},
    {Split::qwen2, "qwen2",
     WEFT_SUFFIX "|" WEFT_LEAD "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" WEFT_END},
    {Split::qwen3_5, "qwen3.5",
     WEFT_SUFFIX "|" WEFT_LEAD
                 "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" WEFT_END},
    {Split::o200k, "o200k",
     WEFT_LEAD WEFT_UPPER "*" WEFT_LOWER "+" WEFT_SUFFIX "?|" WEFT_LEAD WEFT_UPPER "+" WEFT_LOWER
                          "*" WEFT_SUFFIX "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" WEFT_END},
    {Split::tekken, "tekken",
     WEFT_LEAD WEFT_UPPER "*" WEFT_LOWER "+|" WEFT_LEAD WEFT_UPPER "+" WEFT_LOWER
                          "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" WEFT_END},
    {Split::nanochat, "nanochat",
     "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,2}| "
     "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"},
    {Split::deepseek_digits, "deepseek digits", "\\p{N}{1,3}"},
    {Split::deepseek_cjk, "deepseek CJK", "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+"},
    {Split::deepseek_words, "deepseek words",
     "[!\"#$%&'()*+,\\-./"
     ":;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]"
     "+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"},
    {Split::digit, "digits one by one", "\\p{N}"},
    {Split::digits, "runs of digits", "\\p{N}+"},
};

}  // namespace

int find_split(std::string_view regex) {
  for (const Known& k : kKnown)
    if (k.regex == regex) return static_cast<int>(k.split);
  return -1;
}

std::string_view regex_of(Split split) {
  for (const Known& k : kKnown)
    if (k.split == split) return k.regex;
  return {};
}

std::string known_splits() {
  std::string all;
  for (std::size_t i = 0; i < std::size(kKnown); ++i)
    if (i == 0 || kKnown[i].split != kKnown[i - 1].split)
      all += (i ? ", " : "") + std::string(kKnown[i].name);
  return all;
}

}  // namespace weft::tokenizer
