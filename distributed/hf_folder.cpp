#include "weft/distributed/hf_folder.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <set>
#include <utility>

#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/distributed/placed.h"
#include "weft/io/checkpoint.h"
#include "weft/io/file.h"

namespace weft::distributed {
namespace {

constexpr const char* kConfig = "/config.json";
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kScales = "_scale_inv";
constexpr std::int64_t kMostJson = std::int64_t{64} << 20;

io::Json read_json(const std::string& path) {
  const std::int64_t bytes = io::file_size(path);
  check(bytes <= kMostJson, "'{}': must have at most {} bytes, got {}", path, kMostJson, bytes);
  return io::Json::parse(io::read_file(path), "'" + path + "'");
}

// The names of the files in an index.
std::set<std::string> files_in(const std::string& index) {
  const io::Json json = read_json(index);
  const io::Json* const map = json.find("weight_map");
  check(map && map->is_object() && !map->members().empty(),
        "'{}': must have a weight_map of names and files", index);
  std::set<std::string> names;
  for (const io::JsonMember& m : map->members()) {
    check(m.value.is_string(), "'{}': the file of {} must be a string", index, m.key);
    const std::string& name = m.value.as_string();
    check(!name.empty() && name.find('/') == name.npos && name.find("..") == name.npos,
          "'{}': files must be in the folder, got {}", index, io::json_quote(name));
    names.insert(name);
  }
  return names;
}

// The paths of the files that the index names, or of the only one.
std::vector<std::string> files_of(const std::string& folder) {
  const std::string index = folder + "/" + kIndex, single = folder + "/" + kSingle;
  if (!io::exists(index)) {
    check(io::exists(single),
          "'{}': holds neither {} nor {}; weights in .bin and .pt files are programs in pickle, "
          "which are never run: save them with safe_serialization=True",
          folder, kSingle, kIndex);
    return {single};
  }
  std::vector<std::string> paths;
  for (const std::string& name : files_in(index)) {
    paths.push_back(folder + "/" + name);
    check(io::exists(paths.back()), "'{}': the shard {} is missing", folder, name);
  }
  return paths;
}

// The files of weights of a model that is in the folder already, and its index. Whatever else an
// index names is not a file of weights.
std::set<std::string> old_files(const std::string& folder) {
  const std::string index = folder + "/" + kIndex;
  std::set<std::string> paths{folder + "/" + kSingle, index};
  if (!io::exists(index)) return paths;
  try {
    for (const std::string& name : files_in(index))
      if (name.ends_with(".safetensors")) paths.insert(folder + "/" + name);
  } catch (const Error&) {  // an index that cannot be read names no files
  }
  return paths;
}

// "layers.12.x" for "layers.*.x"; whatever starts with a pattern that ends with a dot.
bool matches(std::string_view name, std::string_view pattern) {
  if (pattern.ends_with('.')) return name.starts_with(pattern);
  const std::size_t star = pattern.find('*');
  if (star == pattern.npos) return name == pattern;
  const std::string_view head = pattern.substr(0, star), tail = pattern.substr(star + 1);
  if (name.size() < head.size() + tail.size()) return false;
  const std::string_view number = name.substr(head.size(), name.size() - head.size() - tail.size());
  return name.starts_with(head) && name.ends_with(tail) &&
         number.find_first_not_of("0123456789") == number.npos;
}

// The name in the family's table of a tensor in a file; empty: ignored.
std::string listed_name(const nn::HfFamily& family, const std::string& stored,
                        const std::set<std::string, std::less<>>& listed) {
  if (listed.contains(stored)) return stored;
  if (listed.contains(family.prefix + stored)) return family.prefix + stored;
  std::string_view bare = stored;
  if (bare.starts_with(family.prefix)) bare.remove_prefix(std::string_view(family.prefix).size());
  // The class replaces the head of a model with tied weights by the embedding.
  const bool ignored = bare == "lm_head.weight" ||
                       std::any_of(family.ignored.begin(), family.ignored.end(),
                                   [&](const std::string& p) { return matches(bare, p); });
  check(ignored, "tensor {} is not one of a {} with this config.json", io::json_quote(stored),
        family.type);
  return {};
}

// By the names in the files, after every tensor and its shape has been checked.
Renames renames_of(const nn::HfFamily& family, const std::vector<nn::HfTensor>& table,
                   const std::vector<std::string>& paths, std::int64_t fp8_block) {
  std::map<std::string, const nn::HfTensor*, std::less<>> by_name;
  std::set<std::string, std::less<>> listed;
  for (const nn::HfTensor& t : table) {
    by_name[t.name] = &t;
    listed.insert(t.name);
  }
  Renames renames;
  std::set<std::string> found;
  for (const std::string& path : paths) {
    const io::SafetensorsFile file =
        io::SafetensorsFile::of_index(path, io::SafetensorsFile::read_index(path));
    for (const std::string& stored : file.names()) {
      if (fp8_block > 0 && stored.ends_with(kScales)) continue;  // read with its tensor
      const std::string name = listed_name(family, stored, listed);
      if (name.empty()) continue;
      check(found.insert(name).second, "'{}': tensor {} is in two files", path,
            io::json_quote(name));
      const nn::HfTensor& t = *by_name[name];
      if (t.copy) continue;
      check(file.shape(stored) == t.shape, "'{}': tensor {} must have shape {}, got {}", path,
            io::json_quote(stored), t.shape, file.shape(stored));
      const DType dtype = file.dtype(stored);
      const bool scaled = fp8_block > 0 && dtype == DType::e4m3 && t.shape.size() == 2;
      check(scaled || (is_floating(dtype) && size_of(dtype) > 1),
            "'{}': tensor {} must be of f32, f64, bf16 or f16, got {}", path,
            io::json_quote(stored), dtype);
      renames[stored] = {t.parameter,
                         {{t.whole, {}}, t.first, t.first + t.shape.numel()},
                         t.transposed,
                         t.rows,
                         scaled ? stored + kScales : "",
                         fp8_block};
    }
  }
  for (const nn::HfTensor& t : table)
    check(t.copy || found.contains(t.name), "'{}': tensor {} is missing", paths[0],
          io::json_quote(t.name));
  return renames;
}

// Transformers writes folders without the MTP layers that config.json still counts.
bool lacks_mtp(const std::vector<nn::HfTensor>& table, const std::vector<std::string>& paths) {
  const auto is_of_mtp = [](const nn::HfTensor& t) { return t.parameter.starts_with("mtp."); };
  const auto first = std::find_if(table.begin(), table.end(), is_of_mtp);
  return first != table.end() && std::none_of(paths.begin(), paths.end(), [&](const auto& path) {
           const io::SafetensorsFile file =
               io::SafetensorsFile::of_index(path, io::SafetensorsFile::read_index(path));
           return file.contains(first->name);
         });
}

io::Json read_config(const std::string& path) {
  check(is_hf_folder(path), "'{}': is not a Hugging Face folder: it holds no config.json", path);
  io::Json json = read_json(path + kConfig);
  check(json.is_object(), "'{}{}': must be a JSON object", path, kConfig);
  return json;
}

HfFolder open_checked(const std::string& path) {
  const io::Json json = read_config(path);
  const nn::HfFamily& family = nn::hf_family(json);
  nn::GptConfig config = nn::read_hf_config(family, json);
  const std::vector<std::string> paths = files_of(path);
  const std::int64_t block = nn::hf_fp8_block(family, json);
  // First by count: a table of the sizes that a file claims could be larger than the memory.
  double values = 0;
  for (const std::string& file : paths)
    values += static_cast<double>(io::file_size(file)) / (block > 0 ? 1 : 2);  // bytes, or more
  const auto check_count = [&](const nn::GptConfig& c) {
    check(static_cast<double>(c.parameter_count()) <= values,
          "'{}': config.json describes {} parameters, the files hold {} at most", path,
          c.parameter_count(), values);
  };
  const std::int64_t depths = std::exchange(config.mtp.depths, 0);
  check_count(config);
  if (depths > 0) {
    config.mtp.depths = 1;
    config.mtp.depths = lacks_mtp(family.tensors(config), paths) ? 0 : depths;
    check_count(config);
  }
  return {&family, config,
          ShardFiles(paths, renames_of(family, family.tensors(config), paths, block))};
}

const char* torch_word(DType t) {
  return t == DType::bf16  ? "bfloat16"
         : t == DType::f16 ? "float16"
         : t == DType::f64 ? "float64"
                           : "float32";
}

Tensor read_part(const ShardFiles& files, const nn::HfTensor& t, const HfSaveOptions& options) {
  const Tensor out = Tensor::empty({t.shape.numel()}, files.dtype(t.parameter));
  files.read_into(t.parameter, {{t.whole, {}}, t.first, t.first + t.shape.numel()}, out);
  if (options.change) options.change(t.parameter, t.first, out);
  if (t.transposed) return out.view(t.whole).transpose(0, 1).contiguous();
  const Tensor rows = out.view(t.shape);
  return t.rows.empty() ? rows : move_rows(rows, t.rows, true);
}

// How many tensors of the list go into each file.
std::vector<std::size_t> share_out(const std::vector<nn::HfTensor>& all, const ShardFiles& files,
                                   std::int64_t most) {
  std::vector<std::size_t> counts{0};
  std::int64_t bytes = 0;
  for (const nn::HfTensor& t : all) {
    const std::int64_t more =
        t.shape.numel() * static_cast<std::int64_t>(size_of(files.dtype(t.parameter)));
    if (counts.back() > 0 && bytes + more > most) {
      counts.push_back(0);
      bytes = 0;
    }
    ++counts.back();
    bytes += more;
  }
  return counts;
}

std::string hf_file_name(std::size_t i, std::size_t n) {
  char text[64];
  std::snprintf(text, sizeof text, "model-%05zu-of-%05zu.safetensors", i + 1, n);
  return n == 1 ? kSingle : text;
}

}  // namespace

bool is_hf_folder(const std::string& path) { return io::exists(path + kConfig); }

HfFolder open_hf_folder(const std::string& path) {
  try {
    return open_checked(path);
  } catch (const Error& e) {
    throw Error(e.what(), Fault::user);
  }
}

nn::GptConfig hf_folder_config(const std::string& path) {
  try {
    const io::Json json = read_config(path);
    return nn::read_hf_config(nn::hf_family(json), json);
  } catch (const Error& e) {
    throw Error(e.what(), Fault::user);
  }
}

void save_hf_folder(const std::string& path, const nn::GptConfig& config, const ShardFiles& files,
                    const HfSaveOptions& options) {
  const nn::HfFamily& family = nn::hf_family_of(config, options.family);
  const std::vector<nn::HfTensor> all = family.tensors(config.resolved());
  std::set<std::string> placed;
  for (const nn::HfTensor& t : all) placed.insert(t.parameter);
  check_all_placed(files, config, placed, message("hf: {}", family.type));
  const std::vector<std::size_t> counts = share_out(all, files, options.file_bytes);
  io::make_directories(path);
  std::set<std::string> old = old_files(path);
  io::Json map = io::Json::object();
  std::int64_t bytes = 0;
  std::size_t next = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::string name = hf_file_name(i, counts.size());
    StateDict tensors;
    for (std::size_t k = 0; k < counts[i]; ++k, ++next) {
      const Tensor t = read_part(files, all[next], options);
      bytes += t.numel() * static_cast<std::int64_t>(size_of(t.dtype()));
      map.append(all[next].name, name);
      tensors[all[next].name] = t;
    }
    io::save_safetensors(path + "/" + name, tensors, {{"format", "pt"}});
    old.erase(path + "/" + name);
  }
  if (counts.size() > 1) {
    io::Json index = io::Json::object();
    index.set("metadata", io::Json::object().set("total_size", bytes));
    index.set("weight_map", std::move(map));
    io::write_file(path + "/" + kIndex, index.dump());
    old.erase(path + "/" + kIndex);
  }
  // Else a reader would take the old weights: this one by the index, Hugging Face's by the one
  // file.
  for (const std::string& file : old)
    if (!io::is_directory(file)) io::remove_all(file);
  const char* const dtype = torch_word(files.dtype("embed.weight"));
  // transformers 5 refuses 0 where it expects 0.0.
  const io::Json json = nn::write_hf_config(family, config, dtype);
  io::write_file(path + kConfig, json.dump(io::Json::Doubles::marked) + "\n");
}

ShardFiles open_weights(const std::string& path) {
  if (!io::is_directory(path)) return ShardFiles(std::vector<std::string>{path});
  if (is_hf_folder(path)) return open_hf_folder(path).files;
  if (io::exists(path + "/state.json"))
    return ShardFiles(io::open_checkpoint(path).shards("model"));
  const std::optional<io::Checkpoint> found = io::find_checkpoint(path);
  check(found.has_value(), "'{}': is neither a Hugging Face folder nor one of a run", path);
  return ShardFiles(found->shards("model"));
}

}  // namespace weft::distributed
