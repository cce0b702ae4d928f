#include "weft/distributed/peft_folder.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "weft/core/error.h"
#include "weft/distributed/shard_files.h"
#include "weft/io/file.h"
#include "weft/io/json.h"
#include "weft/io/safetensors.h"
#include "weft/nn/gpt.h"

namespace weft::distributed {
namespace {

constexpr const char* kAdapterConfig = "/adapter_config.json";
constexpr const char* kTensors = "/adapter_model.safetensors";
constexpr const char* kPickle = "/adapter_model.bin";
constexpr std::string_view kRoot = "base_model.model.", kA = ".lora_A.weight",
                           kB = ".lora_B.weight", kBase = ".base_layer.weight", kWeight = ".weight";
constexpr std::int64_t kMostConfigBytes = 16 << 20;

// Keys that change nothing in what a saved adapter computes.
constexpr const char* kIgnored[] = {
    "auto_mapping",   "base_model_name_or_path", "eva_config",   "exclude_modules",
    "fan_in_fan_out", "inference_mode",          "loftq_config", "megatron_core",
    "peft_version",   "qalora_group_size",       "revision",     "runtime_config"};
// Keys that are read.
constexpr const char* kRead[] = {
    "peft_type", "r",          "lora_alpha",     "lora_dropout",     "bias",
    "task_type", "use_rslora", "target_modules", "init_lora_weights"};

bool is_one_of(const std::string& key, std::span<const char* const> keys) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// Null, false, {} or []: what a key that is not known must be.
bool is_unset(const io::Json& v) {
  return v.is_null() || (v.is_bool() && !v.as_bool()) || (v.is_object() && v.members().empty()) ||
         (v.is_array() && v.items().empty());
}

// Initial values that are relative to the weights as the model's folder holds them.
void check_initialisation(const nn::HfConfig& h) {
  constexpr const char* kKey = "init_lora_weights";
  if (!h.has(kKey) || h.at(kKey).is_bool()) return;
  const std::string word = h.text(kKey, "");
  if (word != "gaussian" && word != "eva" && word != "orthogonal")
    h.refuse(kKey, "true, false, gaussian, eva, orthogonal");
}

nn::LoraOptions read_options(const io::Json& json) {
  const nn::HfConfig h(json, "adapter_config.json");
  h.only("peft_type", "LORA");
  check(h.has("peft_type"), "adapter_config.json: peft_type is missing");
  h.only("task_type", "CAUSAL_LM");
  h.only("bias", "none");
  check_initialisation(h);
  for (const io::JsonMember& m : json.members())
    if (!is_one_of(m.key, kIgnored) && !is_one_of(m.key, kRead) && !is_unset(m.value))
      h.refuse(m.key.c_str(), "null, or without the key");
  nn::LoraOptions o;
  o.rank = h.size("r", 8);
  check(o.rank >= 1 && o.rank <= 1 << 16, "adapter_config.json: r must be in [1, 65536], got {}",
        o.rank);
  o.alpha = h.number("lora_alpha", 8);
  check(o.alpha > 0 && o.alpha <= o.kMostAlpha,
        "adapter_config.json: lora_alpha must be above 0 and at most {}, got {}", o.kMostAlpha,
        o.alpha);
  o.dropout = h.number("lora_dropout", 0);
  check(o.dropout >= 0 && o.dropout < 1,
        "adapter_config.json: lora_dropout must be in [0, 1), got {}", o.dropout);
  o.rslora = h.flag("use_rslora", false);
  return o;
}

/// A matrix of a family's files that can have an adapter.
struct Module {
  std::string name;  // "model.layers.0.self_attn.q_proj"
  nn::HfTensor tensor;
  nn::LoraPlace place;
};

std::vector<nn::LoraPlace> places_of(const nn::GptConfig& config) {
  const nn::DeviceScope on_meta(kMeta);
  return nn::lora_places(nn::Gpt(config));
}

std::vector<Module> modules_of(const nn::HfFamily& family, const nn::GptConfig& config,
                               const std::vector<nn::LoraPlace>& all) {
  std::map<std::pair<std::string, std::int64_t>, nn::LoraPlace> places;
  for (const nn::LoraPlace& p : all) places[{p.weight, p.first * p.in}] = p;
  std::vector<Module> out;
  for (const nn::HfTensor& t : family.tensors(config)) {
    const auto found = places.find({t.parameter, t.first});
    if (t.copy || found == places.end() || !t.name.ends_with(kWeight)) continue;
    const nn::LoraPlace& p = found->second;
    if (t.shape.numel() != p.rows * p.in) continue;
    out.push_back({t.name.substr(0, t.name.size() - kWeight.size()), t, p});
  }
  return out;
}

// The matrices of each adapter, under the module's name.
struct Pair {
  Tensor a, b;
};

std::map<std::string, Pair> read_pairs(const std::string& path) {
  check(io::exists(path + kTensors) || !io::exists(path + kPickle),
        "'{}': holds {}, a pickle, and pickles are never run: save it with safe_serialization=True",
        path, kPickle + 1);
  const auto file = io::SafetensorsFile::open(path + kTensors);
  std::map<std::string, Pair> pairs;
  for (const std::string& stored : file.names()) {
    const bool is_a = stored.ends_with(kA), is_b = stored.ends_with(kB);
    // A copy of the head's own weight.
    if (stored.starts_with(kRoot) && stored.ends_with(kBase)) continue;
    check(stored.starts_with(kRoot) && (is_a || is_b),
          "'{}': tensor {} is no lora_A.weight or lora_B.weight of a module", path,
          io::json_quote(stored));
    Pair& pair = pairs[stored.substr(kRoot.size(), stored.size() - kRoot.size() - kA.size())];
    (is_a ? pair.a : pair.b) = file.tensor(stored);
  }
  return pairs;
}

// Whether PEFT gives a module an adapter for this word of target_modules.
bool names(const std::string& word, const std::string& module) {
  return module == word || module.ends_with('.' + word);
}

// A file that lacks an adapter of a target would be another model's, or cut off.
void check_targets(const io::Json& json, const std::vector<Module>& modules,
                   const std::map<std::string, Pair>& pairs, const std::string& path) {
  const io::Json* const targets = json.find("target_modules");
  const io::Json* const excluded = json.find("exclude_modules");
  if (!targets || !targets->is_array() || (excluded && !excluded->is_null())) return;
  for (const io::Json& target : targets->items()) {
    check(target.is_string(), "adapter_config.json: target_modules must be names, got {}",
          target.dump());
    for (const Module& m : modules)
      check(!names(target.as_string(), m.name) || pairs.contains(m.name),
            "'{}': the adapter of {}, which target_modules names, is missing", path, m.name);
  }
}

// LoraOptions::targets of these places: the last part of a name where all places that it names are
// among them, else the whole name.
std::string targets_of(const std::vector<nn::LoraPlace>& all,
                       const std::set<std::string>& adapted) {
  const auto leaf = [](const std::string& name) { return name.substr(name.rfind('.') + 1); };
  std::set<std::string> others, targets;
  for (const nn::LoraPlace& p : all)
    if (!adapted.contains(p.name)) others.insert(leaf(p.name));
  for (const std::string& name : adapted)
    targets.insert(others.contains(leaf(name)) ? name : leaf(name));
  std::string list;
  for (const std::string& t : targets) list += (list.empty() ? "" : ",") + t;
  return list;
}

nn::LoraWeights read_checked(const std::string& path, const nn::HfFamily& family,
                             const nn::GptConfig& config) {
  check(io::file_size(path + kAdapterConfig) <= kMostConfigBytes, "'{}{}': is too large", path,
        kAdapterConfig);
  const io::Json json =
      io::Json::parse(io::read_file(path + kAdapterConfig), path + kAdapterConfig);
  check(json.is_object(), "'{}{}': must be a JSON object", path, kAdapterConfig);
  nn::LoraWeights out{read_options(json), {}};
  const std::vector<nn::LoraPlace> places = places_of(config);
  const std::vector<Module> modules = modules_of(family, config, places);
  std::set<std::string> adapted;
  std::map<std::string, Pair> pairs = read_pairs(path);
  check(!pairs.empty(), "'{}': holds no adapter", path);
  check_targets(json, modules, pairs, path);
  for (const Module& m : modules) {
    const auto found = pairs.find(m.name);
    if (found == pairs.end()) continue;
    const auto take = [&](const Tensor& t, std::string_view which, const Shape& shape) {
      check(t.defined(), "'{}': {}{} is missing", path, m.name, which);
      check(t.shape() == shape && is_compute(t.dtype()),
            "'{}': {}{} must be of f32, f64, bf16 or f16 with shape {}, got {} {}", path, m.name,
            which, shape, t.dtype(), t.shape());
      return t;
    };
    const std::int64_t rank = out.options.rank;
    out.tensors[m.place.adapter + ".a"] = take(found->second.a, kA, {rank, m.place.in});
    const Tensor b = take(found->second.b, kB, {m.place.rows, rank});
    out.tensors[m.place.adapter + ".b"] = m.tensor.rows.empty() ? b : move_rows(b, m.tensor.rows);
    adapted.insert(m.place.name);
    pairs.erase(found);
  }
  check(pairs.empty(), "'{}': {} is not a matrix of a {} that can have an adapter", path,
        pairs.empty() ? std::string() : pairs.begin()->first, family.type);
  out.options.targets = targets_of(places, adapted);
  return out;
}

// The last part of a name, where it stands for exactly the adapted modules, else the whole name.
std::vector<std::string> target_words(const nn::HfFamily& family, const nn::GptConfig& config,
                                      const std::set<std::string>& adapted) {
  std::set<std::string> words;
  for (const std::string& name : adapted) {
    const std::string leaf = name.substr(name.rfind('.') + 1);
    bool all = true;
    for (const nn::HfTensor& t : family.tensors(config))
      if (t.name.ends_with(kWeight))
        if (const std::string other = t.name.substr(0, t.name.size() - kWeight.size());
            names(leaf, other))
          all = all && adapted.contains(other);
    words.insert(all ? leaf : name);
  }
  return {words.begin(), words.end()};
}

io::Json config_of(const nn::LoraOptions& o, const std::vector<std::string>& targets,
                   bool transposed, const std::string& base) {
  io::Json::Array words;
  for (const std::string& t : targets) words.emplace_back(t);
  io::Json j = io::Json::object();
  j.set("base_model_name_or_path", base.empty() ? io::Json() : io::Json(base));
  j.set("bias", "none");
  j.set("fan_in_fan_out", transposed);
  j.set("inference_mode", true);
  j.set("init_lora_weights", true);
  j.set("lora_alpha", o.alpha_or_default());
  j.set("lora_dropout", o.dropout);
  j.set("modules_to_save", io::Json());
  j.set("peft_type", "LORA");
  j.set("r", o.rank);
  j.set("target_modules", std::move(words));
  j.set("task_type", "CAUSAL_LM");
  j.set("use_dora", false);
  j.set("use_rslora", o.rslora);
  return j;
}

}  // namespace

bool is_peft_folder(const std::string& path) { return io::exists(path + kAdapterConfig); }

nn::LoraWeights read_peft_folder(const std::string& path, const nn::HfFamily& family,
                                 const nn::GptConfig& config) {
  try {
    check(is_peft_folder(path), "'{}': holds no adapter_config.json", path);
    return read_checked(path, family, config);
  } catch (const Error& e) {
    throw Error(e.what(), Fault::user);
  }
}

void save_peft_folder(const std::string& path, const nn::HfFamily& family,
                      const nn::GptConfig& config, const nn::LoraWeights& weights,
                      const std::string& base) {
  StateDict tensors;
  std::set<std::string> adapted;
  bool transposed = false;
  for (const Module& m : modules_of(family, config, places_of(config))) {
    const auto a = weights.tensors.find(m.place.adapter + ".a"),
               b = weights.tensors.find(m.place.adapter + ".b");
    if (a == weights.tensors.end() || b == weights.tensors.end()) continue;
    const std::string name = std::string(kRoot) + m.name;
    tensors[name + std::string(kA)] = a->second;
    tensors[name + std::string(kB)] =
        m.tensor.rows.empty() ? b->second : move_rows(b->second, m.tensor.rows, true);
    adapted.insert(m.name);
    transposed = transposed || m.tensor.transposed;
  }
  check(tensors.size() == weights.tensors.size(),
        "peft: {} of {} adapters are of layers that files of a {} do not have",
        (weights.tensors.size() - tensors.size()) / 2, weights.tensors.size() / 2, family.type);
  io::make_directories(path);
  io::save_safetensors(path + kTensors, tensors, {{"format", "pt"}});
  io::write_file(
      path + kAdapterConfig,
      config_of(weights.options, target_words(family, config, adapted), transposed, base).dump() +
          "\n");
}

}  // namespace weft::distributed
