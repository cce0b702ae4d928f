#include "weft/io/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <vector>

#include "weft/core/error.h"
#include "weft/io/json.h"

namespace weft::io {
namespace {

constexpr std::string_view kStepPrefix = "step_";
constexpr std::string_view kTemporary = ".tmp";
constexpr const char* kFiles[] = {"model-r000.safetensors", "optim-r000.safetensors", "state.json"};

std::string root_of(const std::string& out_dir) { return out_dir + "/checkpoints"; }

std::string folder_name(std::int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step_%08lld", static_cast<long long>(step));
  return text;
}

/// The step of "step_00000100"; none for any other name.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return {};
  name.remove_prefix(kStepPrefix.size());
  if (name.size() < 8 || name.size() > 18) return {};
  std::int64_t step = 0;
  for (const char c : name) {
    if (c < '0' || c > '9') return {};
    step = 10 * step + (c - '0');
  }
  return step;
}

/// Steps that have a folder, newest first.
std::vector<std::int64_t> steps_in(const std::string& root) {
  std::vector<std::int64_t> steps;
  for (const std::string& name : list_directory(root))
    if (const auto step = step_of(name)) steps.push_back(*step);
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::string hex(std::uint32_t v) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", v);
  return text;
}

std::string manifest_text(std::int64_t step, const FileSummary (&files)[std::size(kFiles)]) {
  Json list = Json::Array();
  for (std::size_t i = 0; i < std::size(kFiles); ++i)
    list.push_back(Json()
                       .set("name", kFiles[i])
                       .set("bytes", files[i].bytes)
                       .set("crc32c", hex(files[i].crc32c)));
  return Json()
             .set("step", step)
             .set("folder", folder_name(step))
             .set("files", std::move(list))
             .dump() +
         "\n";
}

/// Checks the files of one folder against a manifest.
/// Throws Error naming the first file that is not as it was written.
void verify(const std::string& folder, const Json& manifest) {
  for (const char* required : kFiles) {
    const auto& files = manifest.at("files").items();
    const auto found = std::find_if(files.begin(), files.end(), [&](const Json& f) {
      return f.at("name").as_string() == required;
    });
    check_system(found != files.end(), "checkpoint: the manifest of '{}' does not list {}", folder,
                 required);
    const std::string path = folder + "/" + required;
    check_system(exists(path), "checkpoint: '{}' is missing", path);
    const std::int64_t bytes = found->at("bytes").as_int();
    check_system(file_size(path) == bytes, "checkpoint: '{}' must have {} bytes, got {}", path,
                 bytes, file_size(path));
    const std::string crc = hex(summarize(path).crc32c);
    check_system(crc == found->at("crc32c").as_string(),
                 "checkpoint: '{}' must have CRC-32C {}, got {}", path,
                 found->at("crc32c").as_string(), crc);
  }
}

Json read_manifest(const std::string& path) {
  check_system(exists(path), "checkpoint: '{}' is missing", path);
  return Json::parse(read_file(path), message("checkpoint: '{}'", path));
}

/// What an interrupted save left.
void remove_temporaries(const std::string& root) {
  for (const std::string& name : list_directory(root))
    if (name.ends_with(kTemporary)) remove_all(root + "/" + name);
}

void prune(const std::string& root, std::int64_t newest, int keep) {
  if (keep == 0) return;
  int kept = 0;
  // Folders of later steps come from a run that went back to an older checkpoint: they are stale.
  for (const std::int64_t step : steps_in(root))
    if (step > newest || kept++ >= keep) remove_all(root + "/" + folder_name(step));
}

}  // namespace

void save_checkpoint(const std::string& out_dir, std::int64_t step,
                     const CheckpointContent& content, int keep) {
  check(step >= 0, "save_checkpoint: step must be at least 0, got {}", step);
  check(keep >= 0, "save_checkpoint: keep must be at least 0, got {}", keep);
  const std::string root = root_of(out_dir), folder = root + "/" + folder_name(step);
  const std::string temporary = folder + std::string(kTemporary);
  make_directories(root);
  remove_temporaries(root);
  make_directories(temporary);
  std::string manifest;
  try {
    const Metadata metadata = {{"step", std::to_string(step)}};
    const FileSummary files[] = {
        save_safetensors(temporary + "/" + kFiles[0], content.model, metadata),
        save_safetensors(temporary + "/" + kFiles[1], content.optimizer, metadata),
        write_file(temporary + "/" + kFiles[2], content.state)};
    manifest = manifest_text(step, files);
    write_file(temporary + "/manifest.json", manifest);
    rename_synced(temporary, folder);
    write_file(root + "/latest.json", manifest);
  } catch (const Error&) {
    // Make room again; the error that led here is the one to report.
    try {
      remove_all(temporary);
    } catch (const Error&) {
    }
    throw;
  }
  remove_temporaries(root);  // a folder of the same step that changed places with the new one
  prune(root, step, keep);
}

Checkpoint open_checkpoint(const std::string& folder) {
  const Json manifest = read_manifest(folder + "/manifest.json");
  verify(folder, manifest);
  return {manifest.at("step").as_int(), folder};
}

std::optional<Checkpoint> find_checkpoint(const std::string& out_dir) {
  const std::string root = root_of(out_dir), latest = root + "/latest.json";
  if (!is_directory(root)) return {};
  std::int64_t newest = INT64_MAX;
  std::string fault;
  if (exists(latest)) {
    try {
      const Json manifest = read_manifest(latest);
      const std::int64_t step = manifest.at("step").as_int();
      const std::string folder = root + "/" + folder_name(step);
      newest = step;
      verify(folder, manifest);
      return Checkpoint{step, folder};
    } catch (const Error& e) {
      fault = e.what();
    }
  }
  for (const std::int64_t step : steps_in(root)) {
    if (step > newest) continue;
    try {
      Checkpoint found = open_checkpoint(root + "/" + folder_name(step));
      if (!fault.empty()) log_line(message("{}; going back to step {}", fault, step));
      return found;
    } catch (const Error& e) {
      if (fault.empty()) fault = e.what();
    }
  }
  check_system(fault.empty(), "{}; no earlier checkpoint in '{}' is whole", fault, root);
  return {};
}

}  // namespace weft::io
