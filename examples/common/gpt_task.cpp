#include "weft/examples/common/gpt_task.h"

#include <algorithm>

#include "weft/core/error.h"
#include "weft/core/random.h"
#include "weft/data/packed_documents.h"
#include "weft/distributed/parallelize.h"
#include "weft/distributed/shard_experts.h"
#include "weft/io/crc32c.h"
#include "weft/io/json_fields.h"
#include "weft/train/memory.h"

namespace weft::examples {
namespace {

nn::Gpt make_on_meta(const GptOptions& options) {
  const nn::DeviceScope on_meta(kMeta, options.machine.model_dtype());
  nn::Gpt model(options.gpt());
  if (options.lora.rank > 0) nn::add_lora(model, options.lora);
  check(options.lora.dropout == 0 || model.head.lora.empty(),
        "--lora-dropout: must be 0 with an adapter of the head, got {}", options.lora.dropout);
  return model;
}

// Rows placed side by side in one row draw the same random numbers as separate rows.
RandomState side_by_side(std::int64_t rows) {
  RandomState state = *RandomScope::current();
  state.first_global_row /= static_cast<std::uint64_t>(rows);
  return state;
}

// Counts of a batch with positions: non-padding tokens, targets, and targets of each MTP depth. A
// target counts at depth d if the token d places before it is of the same sequence.
Tensor count_packed(const nn::Gpt& model, const data::Batch& rows) {
  const int depths = model.config.mtp.depths;
  const Tensor out = Tensor::zeros({2 + depths}, DType::f64);
  if (rows.targets.is_meta()) return out;
  const Tensor targets = rows.targets.contiguous(), positions = rows.positions.contiguous();
  double* const counts = out.data<double>();
  for (std::int64_t i = 0; i < targets.numel(); ++i) {
    const int position = positions.data<std::int32_t>()[i];
    if (position < 0) continue;
    ++counts[0];
    if (targets.data<std::int32_t>()[i] == model.loss.ignore_index) continue;
    for (int depth = 0; depth <= std::min(position, depths); ++depth) ++counts[1 + depth];
  }
  return out;
}

nn::GptLosses::Counts counts_of(const Tensor& totals) {
  nn::GptLosses::Counts out{.main = totals.select(0, 1), .tokens = totals.select(0, 0)};
  for (std::int64_t i = 2; i < totals.dim(0); ++i) out.mtp.push_back(totals.select(0, i));
  return out;
}

train::Loss loss_of(const nn::Gpt& model, const data::Batch& batch,
                    const nn::Packing& packing = {}) {
  if (!model.is_training()) {
    const auto main =
        model.loss.sum(model.hidden(batch.inputs, packing), model.head, batch.targets);
    return {.sum = main.loss, .count = main.count};
  }
  const nn::GptLosses losses = model.losses(batch.inputs, batch.targets, packing);
  train::Loss out{
      .sum = losses.main.loss,
      .objective = batch.totals.defined() ? losses.total(counts_of(batch.totals)) : losses.total()};
  // Without packing every token is a target, so no count is needed.
  if (packing) out.count = losses.main.count;
  for (int d = 0; d < losses.mtp.size(); ++d) {
    const std::string name = message("mtp_{}", d + 1);
    out.metrics.push_back({name + "_loss", losses.mtp[d], losses.mtp_count[d], name});
    out.metrics.push_back({name + "_acceptance", losses.mtp_hits[d], losses.mtp_count[d]});
  }
  return out;
}

distributed::Layout spread(nn::Gpt& model, const GptOptions& o,
                           const distributed::DeviceMesh& mesh) {
  distributed::Layout layout = distributed::parallelize(
      model, mesh.tp(),
      distributed::gpt_plan(model.config,
                            {.sequence = o.parallel.sp, .overlap = o.parallel.tp_overlap}));
  if (model.config.moe.experts > 0)
    for (auto& [name, l] :
         distributed::shard_experts(model, mesh,
                                    {.dispatcher = o.parallel.dispatcher,
                                    .tokens = o.parallel.ep_dtype,
                                    .delay_gradients = o.parallel.delay_weight_gradients,
                                    .sequence_parallel = o.parallel.sp}))
      layout[name] = std::move(l);
  return layout;
}

// Resuming a checkpoint of another model is the user's mistake: list the settings that differ.
void check_same_model(const io::Json& saved, const io::Json& asked) {
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

GptTask::GptTask(const GptOptions& options) : model(make_on_meta(options)), options_(options) {}

train::Task GptTask::task() {
  const auto loss = [this](const data::Batch& batch) {
    if (!batch.positions.defined()) return loss_of(model, batch);
    const RandomScope random(side_by_side(batch.rows()));
    const Shape flat{1, batch.inputs.numel()};
    return loss_of(model, {batch.inputs.view(flat), batch.targets.view(flat), {}, batch.totals},
                   data::packing_of(batch, model.config.seq, batch.inputs.device()));
  };
  train::Task task{.model = model, .loss = loss};
  if (model.config.mtp.depths > 0 || model.config.moe.experts > 0)
    task.totals = [this](const data::Batch& rows) {
      return rows.positions.defined() ? count_packed(model, rows) : Tensor();
    };
  task.spread = [this](const distributed::DeviceMesh& mesh) {
    return spread(model, options_, mesh);
  };
  task.bias_rate = options_.balance.bias_rate;
  // Frozen weights need no gradient: another count, which is unknown here.
  task.saves_trained_only = options_.lora.rank > 0;
  if (!task.saves_trained_only) task.flops_per_target = model.config.flops_per_token();
  task.unit = "tokens";
  task.loss_unit = train::kNatsPerToken;
  const io::Json config = config_to_json(model.config);
  const TextTokenizer* const text = options_.data.opened.get();
  task.state.set("tokenizer", text ? text->name : "bytes");
  std::int64_t checksum = 0;  // of the tokenizer; bytes have none
  if (text && !text->is_bytes()) {
    checksum = io::crc32c(text->content.data(), text->content.size());
    task.state.set("tokenizer_crc32c", checksum);
    task.files[text->name] = text->content;
  }
  task.state.set("model", config);
  const io::Json adapter = options_.lora.rank > 0 ? io::fields_to_json(options_.lora) : io::Json();
  const std::string base = options_.run.weights;
  const std::int64_t base_checksum = options_.base_crc32c;
  if (!adapter.is_null())
    task.state.set("lora", adapter).set("base", base).set("base_crc32c", base_checksum);
  task.check_state = [=](const io::Json& state) {
    const io::Json* const lora = state.find("lora");
    check((lora ? lora->dump() : "null") == adapter.dump(),
          "--resume: the checkpoint has the adapter {}, this run {}", lora ? lora->dump() : "none",
          adapter.is_null() ? "none" : adapter.dump());
    // Older checkpoints of adapters do not have it.
    const io::Json* const weights = state.find("base_crc32c");
    check(!weights || weights->as_int() == base_checksum,
          "--resume: the weights in '{}' must be those that the adapter was trained on, got others",
          base);
    const io::Json* const saved = state.find("tokenizer_crc32c");
    check((saved ? saved->as_int() : 0) == checksum,
          "--tokenizer: must be the one in the checkpoint, or its ids mean other text");
    check_same_model(config_to_json(config_from_json(state.at("model"))), config);
  };
  return task;
}

std::int64_t adapter_parameters(const GptOptions& options) {
  if (options.lora.rank == 0) return 0;
  std::int64_t n = 0;
  for (const NamedTensor& p : nn::lora_parameters(make_on_meta(options))) n += p.tensor.numel();
  return n;
}

std::int64_t predict_peak_bytes(const GptOptions& o, int ranks, int rank) {
  GptTask gpt(o);
  const Tensor row = Tensor::empty({1, o.model.seq}, DType::i32);
  return train::predict_peak_bytes(gpt.task(), o, {row, row, {}}, ranks, rank);
}

std::int64_t predict_copied_by_save(const GptOptions& o, int ranks, int rank) {
  GptTask gpt(o);
  const Tensor row = Tensor::empty({1, o.model.seq}, DType::i32);
  return train::predict_copied_by_save(gpt.task(), o, {row, row, {}}, ranks, rank);
}

// Derived sizes are filled in, so that an explicit default gives the same text.
io::Json config_to_json(const nn::GptConfig& c) { return io::fields_to_json(c.resolved()); }

nn::GptConfig config_from_json(const io::Json& j) {
  nn::GptConfig c;
  io::fields_from_json(j, "state.json", c);
  c = c.reduced();  // so that flags beside --init count as they did for that run
  if (c.attention == nn::AttentionKind::mla)
    c.kv_heads = 0;  // older files have the number of heads
  // Sizes out of bounds must not reach code that computes with them.
  try {
    c.validate();
  } catch (const Error& e) {
    throw Error(message("state.json: {}", std::string(e.what())), Fault::system);
  }
  return c;
}

}  // namespace weft::examples
