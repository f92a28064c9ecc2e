#include "weft/model/layers/block_attention.h"

#include <algorithm>

#include <fmt/format.h>

#include "weft/device/operations.h"

namespace weft {

namespace {

PieceCode communicates(CollectiveKind kind, GroupId group, ValueId from, ValueId to) {
  PieceCode code;
  reads(code, {from});
  writes(code, {to});
  code.collectives = {{kind, group, from, to, {}, {}}};
  return code;
}

AttentionBlock block_of(const Run& r, const BlockAttention& a, const Tensor& keys, ValueId begin, ValueId end) {
  AttentionBlock op;
  op.q = r[a.queries].slice_columns(a.query_column, a.heads * a.dim);
  op.k = a.k(keys);
  op.v = a.v(keys);
  op.lse = r[a.lse];
  op.first = r[begin];
  op.end = r[end];
  op.heads = a.heads;
  op.kv_heads = a.kv_heads;
  op.dim = a.dim;
  op.value_dim = a.value_dim;
  op.scale = a.scale;
  return op;
}

}  // namespace

TokenRanks heads_of(const ModuleBuilder& b) {
  const ModuleOptions& o = b.options();
  return b.context_transfer() == ContextTransfer::a2a_p2p ? TokenRanks::of_heads(o.layout, o.batch, o.length)
                                                          : TokenRanks::all(o.layout, o.batch, o.length);
}

TokenRanks ring_of(const ModuleBuilder& b) {
  const ModuleOptions& o = b.options();
  return b.context_transfer() == ContextTransfer::a2a_p2p ? TokenRanks::of_ring(o.layout, o.batch, o.length)
                                                          : TokenRanks::all(o.layout, o.batch, o.length);
}

std::pair<ValueId, ValueId> add_row_order(ModuleBuilder& b, const TokenRanks& ranks) {
  const std::vector<std::int64_t> ordered = ranks.in_order();
  std::vector<std::int64_t> back = ranks.by_rank(), order(back.size());
  for (std::size_t row = 0; row < back.size(); ++row) {
    back[row] = std::lower_bound(ordered.begin(), ordered.end(), back[row]) - ordered.begin();
    order[static_cast<std::size_t>(back[row])] = static_cast<std::int64_t>(row);
  }
  const std::string& group = b.options().layout.name_of(ranks.group);
  return {b.constant_of_ints(group + "_rows_of_tokens", order), b.constant_of_ints(group + "_tokens_of_rows", back)};
}

void BlockAttention::add_values(ModuleBuilder& b) {
  const std::int64_t t = tokens();
  const DType compute = b.compute(), acc = b.accumulate();
  length = b.options().length;
  boundaries = b.module().boundaries;
  keys = b.activation("keys", compute, {t, width()});
  out = b.activation("sums", acc, {t, out_width()});
  lse = b.activation("lse", acc, {heads, t});
  dout = b.activation("d(context)", compute, {t, out_width()});
  delta = b.activation("delta", acc, {heads, t});
  dq = b.activation("d(queries)", acc, {t, heads * dim});
  dkeys = b.activation("d(keys)", acc, {t, width()});
  if (sinks.value.valid()) dsinks = b.scratch("d(sinks)", acc, {heads});
  begin = b.scratch("first_keys", DType::i32, {t});
  end = b.scratch("ends_of_keys", DType::i32, {t});
  places = b.constant_of_ints(fmt::format("{}_places", b.options().layout.name_of(ranks.group)), ranks.here());
}

void BlockAttention::pack(const Run& r, const Tensor& keys_here, const Tensor& values_here) const {
  r.ops().cast(r.stream(), {keys_here, k(r[keys])});
  r.ops().cast(r.stream(), {values_here, v(r[keys])});
}

void BlockAttention::add_delta(PieceCode& code, ValueId result) const {
  reads(code, {result, lse, sinks.value});
  writes(code, {dout, delta});
  if (sinks.value.valid()) {
    writes(code, {dsinks});
    adds_to(code, {sinks.gradient});
  }
  code.run = [a = *this, result, before = std::move(code.run)](const Run& r) {
    if (before) before(r);
    AttentionDelta op{r[result], r[a.dout], r[a.lse], given(r, a.sinks.value), r[a.delta]};
    op.heads = a.heads;
    op.value_dim = a.value_dim;
    if (a.sinks.value.valid()) op.dsinks = r[a.dsinks];
    r.ops().attention_delta(r.stream(), op);
    if (a.sinks.value.valid())
      r.ops().column_sum(r.stream(),
                         {r[a.dsinks].reshape({1, a.heads}), r[a.sinks.gradient], r.store(a.sinks.gradient)});
  };
}

void BlockAttention::find_keys(const Run& r, ValueId key_places) const {
  r.ops().visible_keys(r.stream(), {r[places], r[key_places], given(r, boundaries), r[begin], r[end], length, window});
}

PieceCode BlockAttention::attend(const Step& step) const {
  PieceCode code;
  reads(code, {queries, step.keys, places, boundaries});
  if (step.places != places) reads(code, {step.places});
  if (step.first) reads(code, {sinks.value});
  writes(code, {begin, end});
  adds_to(code, {out, lse});
  code.run = [a = *this, step](const Run& r) {
    a.find_keys(r, step.places);
    AttentionBlock op = block_of(r, a, r[step.keys], a.begin, a.end);
    op.out = r[a.out];
    op.store = r.store(a.out);
    if (step.first) op.sinks = given(r, a.sinks.value);
    r.ops().attention_block(r.stream(), op);
  };
  return code;
}

PieceCode BlockAttention::attend_backward(const Step& step) const {
  PieceCode code;
  reads(code, {queries, step.keys_again, lse, dout, delta, places, boundaries, step.dkeys_before});
  if (step.places != places) reads(code, {step.places});
  writes(code, {begin, end, step.dkeys});
  adds_to(code, {dq});
  code.run = [a = *this, step](const Run& r) {
    a.find_keys(r, step.places);
    const Tensor sums = r[step.dkeys];
    AttentionBlockBackward op{
        block_of(r, a, r[step.keys_again], a.begin, a.end), r[a.dout], r[a.delta], r[a.dq], a.k(sums), a.v(sums)};
    op.store_queries = r.store(a.dq);
    if (!step.last) {
      r.ops().cast(r.stream(), {r[step.dkeys_before], sums});
      op.store_keys = Store::add;
    }
    r.ops().attention_block_backward(r.stream(), op);
  };
  return code;
}

void BlockAttention::add_turning_pieces(ModuleBuilder& b) const {
  const std::int64_t n = ranks.size, t = tokens();
  const std::string& group = b.options().layout.name_of(ranks.group);
  const auto named = [&](const char* what, std::int64_t s, DType dtype) {
    return b.activation(fmt::format("{}.{}", what, s), dtype, {t, width()});
  };
  std::vector<Step> steps(static_cast<std::size_t>(n));
  for (std::int64_t s = 0; s < n; ++s) {
    Step& step = steps[static_cast<std::size_t>(s)];
    step.first = s == 0;
    step.last = s == n - 1;
    step.keys = step.first ? keys : named("keys", s, b.compute());
    step.keys_again = step.first || step.last ? step.keys : named("keys_again", s, b.compute());
    step.dkeys = step.first ? dkeys : named("d(keys)", s, b.accumulate());
    if (!step.last) step.dkeys_before = named("d(keys)_before", s, b.accumulate());
    step.places = step.first ? places
                             : b.constant_of_ints(fmt::format("{}_places_{}_before", group, s),
                                                  ranks.tokens[static_cast<std::size_t>((ranks.rank - s + n) % n)]);
  }
  const auto turn = [&](CollectiveKind kind, ValueId from, ValueId to) {
    return communicates(kind, ranks.group, from, to);
  };
  for (std::int64_t s = 0; s < n; ++s) {
    const auto at = static_cast<std::size_t>(s);
    if (s + 1 < n)
      b.piece(fmt::format("keys.{}", s + 1), Lane::tensor).forward =
          turn(CollectiveKind::to_next, steps[at].keys, steps[at + 1].keys);
    if (s > 0)
      b.piece(fmt::format("gradients.{}", s), Lane::tensor).backward =
          turn(CollectiveKind::to_previous, steps[at].dkeys, steps[at - 1].dkeys_before);
    Piece& p = b.piece(fmt::format("attend.{}", s));
    p.forward = attend(steps[at]);
    p.backward = attend_backward(steps[at]);
    if (s > 1)
      b.piece(fmt::format("keys_back.{}", s), Lane::tensor).backward =
          turn(CollectiveKind::to_previous, steps[at].keys_again, steps[at - 1].keys_again);
  }
}

void BlockAttention::add_gathering_pieces(ModuleBuilder& b) const {
  const std::int64_t t = tokens(), T = ranks.count();
  const DType compute = b.compute(), acc = b.accumulate();
  const ValueId received = b.activation("all_keys", compute, {ranks.size, t, width()}),
                again = b.activation("all_keys_again", compute, {ranks.size, t, width()}),
                dealt = b.activation("d(all_keys)", acc, {ranks.size, t, width()}),
                ordered = b.scratch("keys_in_order", compute, {T, width()}),
                sums = b.scratch("d(keys_in_order)", acc, {T, width()});
  const std::pair<ValueId, ValueId> rows = add_row_order(b, ranks);
  const ValueId order = rows.first, back = rows.second;
  const ValueId all_places = b.constant_of_ints("context_all_places", ranks.in_order());
  b.module().values[dkeys.index()].summed_over = ranks.group;

  Piece& gather = b.piece("gather_keys", Lane::tensor);
  gather.forward = communicates(CollectiveKind::all_gather, ranks.group, keys, received);
  gather.backward = communicates(CollectiveKind::reduce_scatter, ranks.group, dealt, dkeys);

  Piece& p = b.piece("attend");
  const auto put_in_order = [=](const Run& r, ValueId from) {
    r.ops().gather_rows(r.stream(), {r[from].reshape({T, r[ordered].columns()}), r[order], r[ordered]});
  };
  reads(p.forward, {queries, received, order, places, all_places, boundaries, sinks.value});
  writes(p.forward, {ordered, begin, end, out, lse});
  p.forward.run = [=, a = *this](const Run& r) {
    put_in_order(r, received);
    a.find_keys(r, all_places);
    AttentionBlock op = block_of(r, a, r[ordered], a.begin, a.end);
    op.out = r[a.out];
    op.sinks = given(r, a.sinks.value);
    r.ops().attention_block(r.stream(), op);
  };
  reads(p.backward, {queries, again, lse, dout, delta, order, back, places, all_places, boundaries});
  writes(p.backward, {ordered, begin, end, sums, dq, dealt});
  p.backward.run = [=, a = *this](const Run& r) {
    put_in_order(r, again);
    a.find_keys(r, all_places);
    r.ops().attention_block_backward(r.stream(), {block_of(r, a, r[ordered], a.begin, a.end), r[a.dout], r[a.delta],
                                                  r[a.dq], a.k(r[sums]), a.v(r[sums])});
    r.ops().gather_rows(r.stream(), {r[sums], r[back], r[dealt].reshape({T, r[sums].columns()})});
  };
  b.piece("gather_keys_again", Lane::tensor).backward =
      communicates(CollectiveKind::all_gather, ranks.group, keys, again);
}

void BlockAttention::add_pieces(ModuleBuilder& b) const { gathers ? add_gathering_pieces(b) : add_turning_pieces(b); }

}  // namespace weft
