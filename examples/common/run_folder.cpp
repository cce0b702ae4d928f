#include "weft/examples/common/run_folder.h"

#include "weft/core/error.h"
#include "weft/distributed/checkpoint.h"
#include "weft/io/file.h"
#include "weft/io/json_fields.h"

namespace weft::train {
namespace {

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

// Sizes as they are used, so that a default that is spelled out is no other model.
io::Json config_to_json(const nn::GptConfig& c) { return io::fields_to_json(c.resolved()); }

nn::GptConfig config_from_json(const io::Json& j) {
  nn::GptConfig c;
  io::fields_from_json(j, "state.json", c);
  if (c.attention == nn::AttentionKind::mla) c.kv_heads = 0;  // older files say as many as heads
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
