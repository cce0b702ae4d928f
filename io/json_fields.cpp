#include "weft/io/json_fields.h"

#include <algorithm>

namespace weft::io::detail {

std::string key_of(const char* name, const Rule& rule) {
  std::string key = rule.key ? rule.key : name;
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

const Json* ReadFields::find(const char* name, const Rule& rule) const {
  if (!rule.saved) return nullptr;
  const std::string key = key_of(name, rule);
  return rule.required ? &in.at(key) : in.find(key);
}

}  // namespace weft::io::detail
