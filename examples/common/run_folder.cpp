#include "weft/examples/common/run_folder.h"

#include "weft/core/error.h"
#include "weft/distributed/checkpoint.h"
#include "weft/io/file.h"

namespace weft::train {
namespace {

// What a pass through the model depends on; how its routers are trained may change on the way.
void set_experts(io::Json& j, const nn::GptConfig& c) {
  const nn::RouterConfig& r = c.moe.router;
  j.set("experts", c.moe.experts);
  if (c.moe.experts == 0) return;
  j.set("topk", r.route.topk).set("expert_ffn", c.expert_ffn_dim());
  j.set("shared_ffn", c.moe.shared_ffn).set("moe_every", c.moe_every);
  j.set("router", r.route.score == RouterScore::sigmoid ? "sigmoid" : "softmax");
  j.set("expert_bias", r.expert_bias);
  j.set("groups", r.route.groups).set("group_topk", r.route.group_topk);
  j.set("capacity", r.capacity_factor);
  j.set("latent", c.moe.latent).set("shared_gate", c.moe.shared_gate);
}

void get_experts(const io::Json& j, nn::GptConfig& c) {
  const io::Json* const experts = j.find("experts");
  c.moe.experts = experts ? experts->as_int() : 0;  // none before there was such a thing
  if (c.moe.experts == 0) return;
  nn::RouterConfig& r = c.moe.router;
  c.moe.ffn = j.at("expert_ffn").as_int();
  c.moe.shared_ffn = j.at("shared_ffn").as_int();
  c.moe_every = j.at("moe_every").as_int();
  const std::string& score = j.at("router").as_string();
  check_system(score == "softmax" || score == "sigmoid",
               "state.json: router must be softmax or sigmoid, got '{}'", score);
  r.route = {.topk = j.at("topk").as_int(),
             .score = score == "sigmoid" ? RouterScore::sigmoid : RouterScore::softmax,
             .groups = j.at("groups").as_int(),
             .group_topk = j.at("group_topk").as_int()};
  r.expert_bias = j.at("expert_bias").as_bool();
  r.capacity_factor = j.at("capacity").as_double();
  if (const io::Json* latent = j.find("latent")) {
    c.moe.latent = latent->as_int();
    c.moe.shared_gate = j.at("shared_gate").as_bool();
  }
}

// A number that more are added to.
std::int64_t count_of(const io::Json& state, const char* key) {
  const std::int64_t n = state.at(key).as_int();
  check_system(0 <= n && n <= INT64_MAX / 2, "state.json: {} must be in [0, {}], got {}", key,
               INT64_MAX / 2, n);
  return n;
}

// A checkpoint of another model is a user's mistake: say which settings differ.
void check_same_model(const nn::GptConfig& saved_config, const nn::GptConfig& asked_config) {
  const io::Json saved = config_to_json(saved_config), asked = config_to_json(asked_config);
  std::string differences;
  for (const io::JsonMember& m : asked.members()) {
    const io::Json* const found = saved.find(m.key);
    const std::string other = found ? found->dump() : "none";
    if (other == m.value.dump()) continue;
    differences += message("{}{} {} (this run: {})", differences.empty() ? "" : ", ", m.key, other,
                           m.value.dump());
  }
  check(differences.empty(), "--resume: the checkpoint is of another model: {}", differences);
}

}  // namespace

io::Json config_to_json(const nn::GptConfig& c) {
  io::Json j = io::Json::object();
  j.set("arch", c.arch == nn::Arch::llama ? "llama" : "gpt2");
  j.set("layers", c.layers).set("heads", c.heads);
  j.set("kv_heads", c.kv_head_count()).set("dim", c.dim).set("ffn", c.ffn_dim());
  j.set("seq", c.seq).set("vocab", c.vocab);
  j.set("rope_theta", c.rope_theta).set("norm_eps", c.norm_eps);
  j.set("qk_norm", c.qk_norm).set("tie", c.tied()).set("window", c.window);
  j.set("pattern", c.pattern);
  // Sizes as they are used, so that a default that is spelled out is no other model.
  const bool mixes = c.pattern.find('d') != std::string::npos;
  const bool mla = c.attention == nn::AttentionKind::mla;
  nn::GatedDeltaNetOptions delta{0, 0, 0, 0, 0};
  if (mixes) delta = c.delta_options();
  const nn::MlaOptions latent = mla ? c.mla_options() : nn::MlaOptions{};
  j.set("delta_key_heads", delta.key_heads).set("delta_value_heads", delta.value_heads);
  j.set("delta_key_dim", delta.key_dim).set("delta_value_dim", delta.value_dim);
  j.set("delta_conv", delta.conv);
  j.set("attention", mla ? "mla" : "mha");
  j.set("q_lora", latent.q_lora).set("kv_lora", latent.kv_lora);
  j.set("qk_nope", latent.nope).set("qk_rope", latent.rope).set("v_head", latent.v_head);
  j.set("mtp", c.mtp.depths).set("mtp_repeated", c.mtp.repeated);
  set_experts(j, c);
  return j;
}

nn::GptConfig config_from_json(const io::Json& j) {
  nn::GptConfig c;
  const std::string& arch = j.at("arch").as_string();
  check_system(arch == "gpt2" || arch == "llama",
               "state.json: arch must be gpt2 or llama, got '{}'", arch);
  c.arch = arch == "llama" ? nn::Arch::llama : nn::Arch::gpt2;
  c.layers = j.at("layers").as_int();
  c.heads = j.at("heads").as_int();
  c.kv_heads = j.at("kv_heads").as_int();
  c.dim = j.at("dim").as_int();
  c.ffn = j.at("ffn").as_int();
  c.seq = j.at("seq").as_int();
  c.vocab = j.at("vocab").as_int();
  c.rope_theta = j.at("rope_theta").as_double();
  c.norm_eps = j.at("norm_eps").as_double();
  c.qk_norm = j.at("qk_norm").as_bool();
  c.tie = j.at("tie").as_bool();
  c.window = j.at("window").as_int();
  // Checkpoints from before there was such a thing are without it.
  if (const io::Json* depths = j.find("mtp")) {
    c.mtp.depths = depths->as_int();
    c.mtp.repeated = j.at("mtp_repeated").as_bool();
  }
  if (const io::Json* pattern = j.find("pattern")) c.pattern = pattern->as_string();
  if (const io::Json* conv = j.find("delta_conv")) {
    c.delta_key_heads = j.at("delta_key_heads").as_int();
    c.delta_value_heads = j.at("delta_value_heads").as_int();
    c.delta_key_dim = j.at("delta_key_dim").as_int();
    c.delta_value_dim = j.at("delta_value_dim").as_int();
    c.delta_conv = conv->as_int();
  }
  if (const io::Json* attention = j.find("attention")) {
    if (attention->as_string() == "mla") c.attention = nn::AttentionKind::mla;
    c.q_lora = j.at("q_lora").as_int();
    c.kv_lora = j.at("kv_lora").as_int();
    c.qk_nope = j.at("qk_nope").as_int();
    c.qk_rope = j.at("qk_rope").as_int();
    c.v_head = j.at("v_head").as_int();
    if (c.attention == nn::AttentionKind::mla) c.kv_heads = 0;
  }
  get_experts(j, c);
  // Sizes out of all bounds must not reach whoever computes with them.
  try {
    c.validate();
  } catch (const Error& e) {
    throw Error(message("state.json: {}", std::string(e.what())), Fault::system);
  }
  return c;
}

RunFolder::RunFolder(const std::string& path, bool resume, const Ranks* ranks)
    : path_(path), ranks_(ranks) {
  const auto open = [&] {
    io::make_directories(path);
    lock_.emplace(path);
    check(lock_->holder().empty(),
          "--out: '{}' is in use by {}; wait until that run ends, or name another folder", path,
          lock_->holder());
    check(resume || !(io::exists(metrics()) || io::exists(path + "/checkpoints")),
          "--out: '{}' already holds a run; add --resume to go on with it, or name another folder",
          path);
  };
  if (ranks)
    ranks->on_first(open);
  else
    open();
}

void RunFolder::write_config(const std::string& toml) const {
  io::write_file(path_ + "/config.toml", toml);
}

std::optional<RunState> RunFolder::restore(Session& session) const {
  const std::optional<io::Checkpoint> found =
      ranks_ ? distributed::find_checkpoint(ranks_->host(), path_) : io::find_checkpoint(path_);
  if (!found) return std::nullopt;
  const io::Json state = io::Json::parse(found->state(), found->folder + "/state.json");
  check_same_model(config_from_json(state.at("model")), session.model().config);
  session.load(distributed::PieceFiles(found->shards("model")),
               distributed::PieceFiles(found->shards("optim")));
  RunState run;
  run.step = count_of(state, "step");
  run.tokens = count_of(state, "tokens");
  run.loader = data::loader_state_from_json(state.at("loader"));
  // Checkpoints from before there was such a thing are without it.
  if (const io::Json* row = state.find("row")) {
    run.row = *row;
    run.evaluates = state.at("evaluates").as_bool();
  }
  return run;
}

std::string RunFolder::save(Session& session, const RunState& run, std::int64_t keep) const {
  io::Json state = io::Json::object();
  state.set("step", run.step).set("tokens", run.tokens).set("loader", data::to_json(run.loader));
  state.set("tokenizer", "bytes");
  state.set("model", config_to_json(session.model().config));
  state.set("row", run.row).set("evaluates", run.evaluates);
  if (ranks_) {
    distributed::save_checkpoint(ranks_->host(), path_, run.step, session.model_pieces(),
                                 session.optimizer_pieces(), state.dump(), static_cast<int>(keep));
  } else {
    const io::CheckpointContent content{.model = session.model().state_dict(),
                                        .optimizer = session.optimizer().state_dict(),
                                        .state = state.dump()};
    io::save_checkpoint(path_, run.step, content, static_cast<int>(keep));
  }
  return message("{}/checkpoints", path_);
}

}  // namespace weft::train
