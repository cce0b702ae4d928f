#include "weft/io/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <set>
#include <vector>

#include "weft/core/error.h"
#include "weft/io/json.h"

namespace weft::io {
namespace {

constexpr std::string_view kStepPrefix = "step_";
constexpr std::string_view kTemporary = ".tmp";
constexpr const char* kState = "state.json";
// The files of every checkpoint.
constexpr const char* kRequired[] = {"model-r000.safetensors", "optim-r000.safetensors", kState};

std::string root_of(const std::string& out_dir) { return out_dir + "/checkpoints"; }

std::string folder_name(std::int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "step_%08lld", static_cast<long long>(step));
  return text;
}

/// The step in "step_00000100"; nullopt for any other name.
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

/// "x" for "x.old", the temporary name that rename_synced() uses; "" for any other name.
std::string original_name(const std::string& name) {
  const std::string old = aside_of("");
  return name.ends_with(old) ? name.substr(0, name.size() - old.size()) : "";
}

/// The steps that have a folder, newest first.
std::vector<std::int64_t> steps_in(const std::string& root) {
  std::set<std::int64_t> steps;
  for (const std::string& name : list_directory(root))
    for (const std::string& text : {name, original_name(name)})
      if (const auto step = step_of(text)) steps.insert(*step);
  return {steps.rbegin(), steps.rend()};
}

/// Where a step's files are: in its folder or, after a crash during its replacement, in the folder
/// that was moved aside.
std::string folder_of(const std::string& root, std::int64_t step) {
  const std::string folder = root + "/" + folder_name(step), aside = aside_of(folder);
  return !is_directory(folder) && is_directory(aside) ? aside : folder;
}

std::string hex(std::uint32_t v) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", v);
  return text;
}

std::string manifest_text(std::int64_t step, const std::vector<CheckpointFile>& files) {
  Json list = Json::Array();
  for (const CheckpointFile& f : files)
    list.push_back(Json()
                       .set("name", f.name)
                       .set("bytes", f.summary.bytes)
                       .set("crc32c", hex(f.summary.crc32c)));
  return Json()
             .set("step", step)
             .set("folder", folder_name(step))
             .set("files", std::move(list))
             .dump() +
         "\n";
}

/// Throws Error when a required file is not listed, or a listed file is in another folder.
Checkpoint listed(const std::string& folder, const Json& manifest) {
  Checkpoint c{manifest.at("step").as_int(), folder, {}};
  for (const Json& f : manifest.at("files").items()) c.files.push_back(f.at("name").as_string());
  for (const char* required : kRequired)
    check_system(std::find(c.files.begin(), c.files.end(), required) != c.files.end(),
                 "checkpoint: the manifest of '{}' does not list {}", folder, required);
  for (const std::string& name : c.files)
    check_system(name.find('/') == std::string::npos,
                 "checkpoint: the manifest of '{}' must list names of its folder, got '{}'", folder,
                 name);
  std::vector<std::string> names = c.files;
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  check_system(twice == names.end(), "checkpoint: the manifest of '{}' must list {} once", folder,
               twice == names.end() ? std::string() : *twice);
  return c;
}

/// Throws Error when a file does not match its recorded size and checksum.
void verify_file(const std::string& path, std::int64_t bytes, const std::string& crc32c) {
  check_system(exists(path), "checkpoint: '{}' is missing", path);
  check_system(file_size(path) == bytes, "checkpoint: '{}' must have {} bytes, got {}", path, bytes,
               file_size(path));
  const std::string crc = hex(summarize(path).crc32c);
  check_system(crc == crc32c, "checkpoint: '{}' must have CRC-32C {}, got {}", path, crc32c, crc);
}

std::string read_manifest(const std::string& path) {
  check_system(exists(path), "checkpoint: '{}' is missing", path);
  return read_file(path);
}

/// A file that cannot be removed does no harm: it is logged once, and the run continues.
void try_remove(const std::string& path) {
  try {
    remove_all(path);
  } catch (const FileError& e) {
    static std::mutex mutex;
    static std::set<std::string> told;
    const std::lock_guard lock(mutex);
    if (told.insert(path).second) log_line(message("{}; it stays", e.what()));
  }
}

/// Removes the remains of an interrupted save and restores the name of a folder that it had moved
/// aside.
void remove_leftovers(const std::string& root) {
  for (const std::string& name : list_directory(root)) {
    const std::string path = root + "/" + name, before = root + "/" + original_name(name);
    const bool aside = step_of(original_name(name)).has_value();
    if (aside && !exists(before))
      rename_synced(path, before);
    else if (aside || name.ends_with(kTemporary))
      try_remove(path);
  }
}

void prune(const std::string& root, std::int64_t newest, int keep) {
  if (keep == 0) return;
  int kept = 0;
  // Folders of later steps come from a run that was restarted from an older checkpoint: they are
  // stale.
  for (const std::int64_t step : steps_in(root))
    if (step > newest || kept++ >= keep) try_remove(root + "/" + folder_name(step));
}

}  // namespace

std::string shard_name(std::string_view kind, int rank) {
  char text[32];
  std::snprintf(text, sizeof text, "-r%03d.safetensors", rank);
  return std::string(kind) + text;
}

std::vector<std::string> Checkpoint::shards(std::string_view kind) const {
  std::vector<std::string> paths;
  for (const std::string& name : files)
    if (name.starts_with(std::string(kind) + "-r")) paths.push_back(folder + "/" + name);
  return paths;
}

std::string checkpoint_folder(const std::string& out_dir, std::int64_t step, bool complete) {
  const std::string folder = root_of(out_dir) + "/" + folder_name(step);
  return complete ? folder : folder + std::string(kTemporary);
}

std::string begin_checkpoint(const std::string& out_dir, std::int64_t step) {
  check(step >= 0, "save_checkpoint: step must be at least 0, got {}", step);
  const std::string root = root_of(out_dir), temporary = checkpoint_folder(out_dir, step);
  make_directories(root);
  remove_leftovers(root);
  make_directories(temporary);
  return temporary;
}

void commit_checkpoint(const std::string& out_dir, std::int64_t step,
                       std::vector<CheckpointFile> files, const std::string& state, int keep) {
  const std::string root = root_of(out_dir), temporary = checkpoint_folder(out_dir, step);
  files.push_back({kState, write_file(temporary + "/" + kState, state)});
  const std::string manifest = manifest_text(step, files);
  write_file(temporary + "/manifest.json", manifest);
  rename_synced(temporary, checkpoint_folder(out_dir, step, true));
  write_file(root + "/latest.json", manifest);
  remove_leftovers(root);  // removes a folder of the same step that was exchanged with the new one
  prune(root, step, keep);
}

void abandon_checkpoint(const std::string& out_dir, std::int64_t step) {
  remove_all(checkpoint_folder(out_dir, step));
}

void save_checkpoint(const std::string& out_dir, std::int64_t step,
                     const CheckpointContent& content, int keep) {
  check(keep >= 0, "save_checkpoint: keep must be at least 0, got {}", keep);
  const std::string folder = begin_checkpoint(out_dir, step);
  try {
    const Metadata metadata = {{"step", std::to_string(step)}};
    const std::string model = shard_name("model", 0), optim = shard_name("optim", 0);
    commit_checkpoint(
        out_dir, step,
        {{model, save_safetensors(folder + "/" + model, content.model, metadata)},
         {optim, save_safetensors(folder + "/" + optim, content.optimizer, metadata)}},
        content.state, keep);
  } catch (const Error&) {
    // Free the disk space; the original error is the one to report.
    try {
      abandon_checkpoint(out_dir, step);
    } catch (const Error&) {
    }
    throw;
  }
}

Checkpoint verify_checkpoint(const std::string& folder, const std::string& manifest, int rank,
                             int ranks) {
  check(rank >= 0 && rank < ranks, "verify_checkpoint: rank must be in [0, {}), got {}", ranks,
        rank);
  const Json json = Json::parse(manifest, message("checkpoint: the manifest of '{}'", folder));
  Checkpoint c = listed(folder, json);
  std::vector<std::int64_t> shares(static_cast<std::size_t>(ranks));  // bytes per process
  for (const Json& f : json.at("files").items()) {
    const std::int64_t bytes = f.at("bytes").as_int();
    const auto least = std::min_element(shares.begin(), shares.end());
    check_system(bytes >= 0 && !__builtin_add_overflow(*least, bytes, &*least),
                 "checkpoint: the manifest of '{}' must have sizes that can be added, got {}",
                 folder, bytes);
    if (least - shares.begin() == rank)
      verify_file(folder + "/" + f.at("name").as_string(), bytes, f.at("crc32c").as_string());
  }
  return c;
}

Checkpoint open_checkpoint(const std::string& folder) {
  return verify_checkpoint(folder, read_manifest(folder + "/manifest.json"));
}

std::optional<Checkpoint> find_checkpoint(const std::string& out_dir, const Verify& verify) {
  const std::string root = root_of(out_dir), latest = root + "/latest.json";
  if (!is_directory(root)) return {};
  std::int64_t newest = INT64_MAX;
  std::string fault;
  // Returns nullopt when the checkpoint is damaged. The first fault is reported.
  const auto attempt = [&](const std::string& path,
                           std::optional<std::int64_t> step) -> std::optional<Checkpoint> {
    std::string manifest, wrong;
    Checkpoint found;
    try {
      manifest = read_manifest(path);
      const Json json = Json::parse(manifest, message("checkpoint: '{}'", path));
      if (!step) newest = json.at("step").as_int();
      found = listed(folder_of(root, step.value_or(newest)), json);
    } catch (const FileError& e) {
      if (!e.is_missing()) throw;
      wrong = e.what();
    } catch (const Error& e) {
      wrong = e.what();
    }
    if (wrong.empty()) wrong = verify(found.folder, manifest);
    if (wrong.empty()) return found;
    if (fault.empty()) fault = wrong;
    return std::nullopt;
  };
  if (exists(latest))
    if (auto found = attempt(latest, std::nullopt)) return found;
  for (const std::int64_t step : steps_in(root)) {
    if (step > newest) continue;
    if (auto found = attempt(folder_of(root, step) + "/manifest.json", step)) {
      if (!fault.empty()) log_line(message("{}; going back to step {}", fault, step));
      return found;
    }
  }
  if (!fault.empty())
    throw DamagedCheckpoints(message("{}; no earlier checkpoint in '{}' is intact", fault, root),
                             Fault::system);
  return {};
}

std::optional<Checkpoint> find_checkpoint(const std::string& out_dir) {
  return find_checkpoint(out_dir, [](const std::string& folder, const std::string& manifest) {
    try {
      verify_checkpoint(folder, manifest);
    } catch (const FileError& e) {
      if (!e.is_missing()) throw;
      return std::string(e.what());
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  });
}

CheckpointContent load_checkpoint(const std::string& out_dir) {
  const std::optional<Checkpoint> found = find_checkpoint(out_dir);
  check_system(found.has_value(), "load_checkpoint: '{}' has no checkpoint", out_dir);
  const auto only = [&](const char* kind) {
    const std::vector<std::string> paths = found->shards(kind);
    check_system(paths.size() == 1, "load_checkpoint: '{}' must have 1 {} file, got {}",
                 found->folder, kind, paths.size());
    return load_safetensors(paths[0]);
  };
  return {.model = only("model"), .optimizer = only("optim"), .state = found->state()};
}

}  // namespace weft::io
