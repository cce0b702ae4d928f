#include <algorithm>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/io/json.h"
#include "weft/io/safetensors.h"
#include "weft/io/safetensors_format.h"

namespace weft::io {
namespace {

std::int64_t byte_count(const TensorSource& t) {
  return t.shape.numel() * static_cast<std::int64_t>(size_of(t.dtype));
}

}  // namespace

FileSummary save_safetensors(const std::string& path, const StateDict& tensors,
                             const Metadata& metadata) {
  TensorSources sources;
  for (const auto& [name, t] : tensors) {
    check(t.defined(), "save_safetensors: tensor {} is null", json_quote(name));
    check(!t.is_meta(), "save_safetensors: tensor {} is on the meta device and has no data",
          json_quote(name));
    sources[name] = {t.shape(), t.dtype(), [&t = t] { return t; }};
  }
  return write_safetensors(path, sources, metadata);
}

FileSummary write_safetensors(const std::string& path, const TensorSources& tensors,
                              const Metadata& metadata, const std::stop_token& stop) {
  std::vector<const TensorSources::value_type*> order;
  for (const auto& named : tensors) {
    check(named.first != kMetadataKey, "save_safetensors: a tensor cannot be named __metadata__");
    check(find_invalid_utf8(named.first) == std::string::npos,
          "save_safetensors: tensor names must be UTF-8");
    order.push_back(&named);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    const std::size_t x = size_of(a->second.dtype), y = size_of(b->second.dtype);
    return x != y ? x > y : a->first < b->first;
  });

  Json header = Json::object();
  if (!metadata.empty()) {
    Json object = Json::object();
    for (const auto& [key, value] : metadata) object.set(key, value);
    header.set(kMetadataKey, std::move(object));
  }
  std::int64_t offset = 0;
  for (const auto* named : order) {
    const auto& [name, t] = *named;
    const std::int64_t end = offset + byte_count(t);
    Json entry;
    entry.set("dtype", std::string(file_dtype(t.dtype).name));
    entry.set("shape", Json::Array(t.shape.begin(), t.shape.end()));
    entry.set("data_offsets", Json::Array{offset, end});
    header.append(name, std::move(entry));
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  check(length <= kMaxHeader, "save_safetensors: the header must have at most {} bytes, got {}",
        kMaxHeader, length);

  AtomicFile file(path, stop);
  file.write(&length, kLengthBytes);
  file.write(text);
  for (const auto* named : order) {
    // detach(): a copy made here must not be recorded.
    Tensor t = named->second.read().detach();
    if (!t.device().is_cpu()) t = t.to(kCpu);
    if (!t.is_contiguous()) t = t.contiguous();
    if (t.numel() > 0) file.write(t.raw(), static_cast<std::size_t>(byte_count(named->second)));
  }
  return file.commit();
}

}  // namespace weft::io
