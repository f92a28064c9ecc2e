#include "weft/model/tensor_checks.h"

#include <fmt/format.h>

#include "weft/base/error.h"

namespace weft {

namespace {

void require_divides(std::int64_t value, const char* field, std::int64_t ranks) {
  if (value % ranks != 0)
    throw UserError("`{}` {}: must be a multiple of `tensor_ranks` {}; use {}{}, or fewer tensor ranks", field, value,
                    ranks, value > ranks ? fmt::format("{} or ", value / ranks * ranks) : "",
                    (value / ranks + 1) * ranks);
}

void require_shares(std::int64_t heads, const char* field, std::int64_t ranks) {
  if (heads % ranks != 0 && ranks % heads != 0)
    throw UserError("`{}` {}: must be a multiple of `tensor_ranks` {}, or divide them: then ranks share heads", field,
                    heads, ranks);
}

void check_attention(const AttentionSpec& a, std::int64_t ranks) {
  require_divides(a.heads, "attention.heads", ranks);
  require_shares(a.kv_heads, "attention.kv_heads", ranks);
}

void check_experts(const ModelConfig& config, const ModuleOptions& options, std::int64_t ranks) {
  const ExpertsSpec& e = config.experts;
  const std::int64_t parts = options.layout.size_of(options.layout.expert_tensor_ranks());
  const auto divides = [&](std::int64_t value, const char* field) {
    if (value % parts != 0)
      throw UserError("`{}` {}: must be a multiple of `expert_tensor_ranks` {}; use 1, or a divisor of it", field,
                      value, parts);
  };
  divides(e.ffn, "experts.ffn");
  if (e.bias) e.latent > 0 ? divides(e.latent, "experts.latent") : divides(config.hidden, "hidden");
  if (ranks == 1) return;
  if (e.shared_ffn > 0) require_divides(e.shared_ffn, "experts.shared_ffn", ranks);
  const std::int64_t here = options.length / options.layout.size_of(options.layout.context_ranks());
  if (here % ranks != 0)
    throw UserError("`length` {}: the tokens of a sequence are routed by `tensor_ranks` {}; use a multiple of it",
                    options.length, ranks);
  const std::int64_t each = options.batch * here / ranks;
  if (e.balance.sequence_aux_loss > 0 && each % here != 0 && here % each != 0)
    throw UserError(
        "`batch` {}: with a loss of each sequence, `tensor_ranks` {} route whole sequences or parts of one; use a "
        "multiple or a divisor of it",
        options.batch, ranks);
}

void check_mamba(const MambaSpec& m, std::int64_t ranks) {
  require_divides(m.heads, "mamba.heads", ranks);
  require_shares(m.groups, "mamba.groups", ranks);
}

}  // namespace

void check_tensor_ranks(const ModelConfig& config, const Pattern& pattern, const ModuleOptions& options) {
  const auto has = [&](Symbol symbol) { return pattern.counts.at(symbol) > 0; };
  const std::int64_t ranks = options.layout.size_of(options.layout.tensor_ranks());
  if (has(Symbol::experts)) check_experts(config, options, ranks);
  if (ranks == 1) return;
  if (options.sequence_parallel && options.length % ranks != 0)
    throw UserError("`length` {}: `sequence_parallel` divides a sequence among `tensor_ranks` {}; use a multiple of it",
                    options.length, ranks);
  require_divides(config.hidden, "hidden", ranks);
  if (has(Symbol::latent_attention) || has(Symbol::sparse_attention))
    require_divides(config.latent_attention.heads, "latent_attention.heads", ranks);
  if (has(Symbol::mamba)) check_mamba(config.mamba, ranks);
  if (has(Symbol::gated_delta)) {
    require_divides(config.delta_net.heads, "delta_net.heads", ranks);
    require_shares(config.delta_net.key_heads, "delta_net.key_heads", ranks);
  }
  if (has(Symbol::attention)) {
    check_attention(config.attention, ranks);
    for (const auto& [physical, spec] : config.attention_at) check_attention(spec, ranks);
  }
  if (has(Symbol::mlp)) require_divides(config.mlp.ffn, "mlp.ffn", ranks);
}

}  // namespace weft
