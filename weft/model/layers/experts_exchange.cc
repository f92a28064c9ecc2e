// Experts spread over the ranks of an expert group: rows go to the rank of their expert and come back.
//
// counts    every rank learns how many rows each source has for each of its experts
// dispatch  sends rows and their weights; received rows are ordered by source, then by expert
// experts   sorts them by expert (within an expert by source, then in the source's order), runs the MLP, sorts back
// combine   sends results back to where their rows were
// In backward, gradients take the same paths in reverse. B: most rows that can be received; El: experts of this rank.
#include <algorithm>

#include "weft/device/operations.h"
#include "weft/model/layers/experts.h"

namespace weft {

namespace {

// Wraps `before` and `after` around a phase's code. made: values of the code that `before` now writes; more: other
// uses.
void surround(PieceCode& code, std::vector<ValueUse> made, std::vector<ValueUse> more,
              std::function<void(const Run&)> before, std::function<void(const Run&)> after) {
  for (ValueUse& use : code.uses)
    for (const ValueUse& own : made)
      if (use.value == own.value) use.access = own.access;
  code.uses.insert(code.uses.end(), more.begin(), more.end());
  code.run = [before = std::move(before), inner = std::move(code.run), after = std::move(after)](const Run& r) {
    if (before) before(r);
    inner(r);
    if (after) after(r);
  };
}

}  // namespace

void add_exchanged_experts(ModuleBuilder& b, const ExpertsSpec& spec, const Routing& v,
                           const std::function<void()>& add_meanwhile) {
  const Layout& layout = b.options().layout;
  const GroupId group = layout.expert_parts();
  const Layout::ExpertRange here = layout.experts_here(spec.experts);
  const std::int64_t T = routed_tokens(b).rows.count, H = row_width(b, spec), ranks = layout.size_of(group);
  const std::int64_t El = here.count, alignment = b.options().row_alignment;
  // A token has at most min(k, El) rows on one rank.
  const std::int64_t B = ranks * T * std::min(spec.router.k, El);
  const std::int64_t R = B + El * (alignment - 1);
  const DType compute = b.compute(), acc = b.accumulate();

  const ValueId source_counts = b.activation("source_counts", DType::i32, {ranks, El});
  const ValueId received = b.activation("received", compute, {B, H});
  const ValueId received_weights = b.activation("received_weights", acc, {B, 1});
  const ValueId sent = b.activation("sent", compute, {B, H});
  const ValueId dsent = b.activation("d(sent)", compute, {B, H});
  const ValueId dreceived = b.activation("d(received)", compute, {B, H});
  const ValueId dreceived_weights = b.activation("d(received_weights)", acc, {B, 1});
  const ValueId of_row = b.activation("received_of_row", DType::i32, {R});
  const ValueId of_received = b.activation("row_of_received", DType::i32, {B});
  const ValueId received_in_use = b.activation("received_in_use", DType::i32, {1});

  ExpertRows rows;
  rows.counts = b.activation("local_counts", DType::i32, {El});
  rows.offsets = b.activation("local_offsets", DType::i32, {El + 1});
  rows.in_use = b.activation("local_rows_in_use", DType::i32, {1});
  rows.rows = b.activation("local_rows", compute, {R, H});
  rows.row_weights = b.activation("local_weights", acc, {R, 1});
  rows.drows = b.scratch("d(local_rows)", compute, {R, H});
  rows.drow_weights = b.scratch("d(local_weights)", acc, {R, 1});
  rows.out = b.scratch("local_out", compute, {R, H});
  rows.dout = b.activation("d(local_out)", compute, {R, H});
  rows.R = R;
  rows.experts = El;
  rows.first_expert = here.first;
  rows.in_use_share = static_cast<double>(T * spec.router.k * v.copies) / static_cast<double>(B);

  // Even routing sends a rank T k rows on average, of each expert tensor rank.
  const double share = rows.in_use_share;
  for (ValueId value : {received, received_weights, sent, dsent, dreceived, dreceived_weights, of_row, of_received,
                        rows.rows, rows.row_weights, rows.drows, rows.drow_weights, rows.out, rows.dout})
    b.module().values[value.index()].in_use = share;

  // On their own rank, rows are ordered by the rank they go to; at the experts, by the rank they came from. Results and
  // gradients have the same order.
  for (ValueId value : {v.rows, v.row_weights, v.drows, v.drow_weights, v.out, v.dout})
    b.module().values[value.index()].counts = v.counts;
  for (ValueId value : {received, received_weights, dreceived, dreceived_weights, sent, dsent})
    b.module().values[value.index()].counts = source_counts;
  for (ValueId value : {v.rows, v.row_weights, v.drows, v.drow_weights, v.out, v.dout, received, received_weights,
                        dreceived, dreceived_weights, sent, dsent, v.counts, source_counts})
    b.module().values[value.index()].exchanged_over = group;

  Piece& counts = b.piece("counts", Lane::exchange);
  counts.forward.uses = {{v.counts}, {source_counts, Access::write}};
  counts.forward.collectives = {{CollectiveKind::all_to_all, group, v.counts, source_counts, {}, {}}};

  Piece& dispatch = b.piece("dispatch", Lane::exchange);
  dispatch.modules = set_of({RecomputeModule::moe});
  dispatch.forward.uses = {{v.counts},      {source_counts},           {v.rows},
                           {v.row_weights}, {received, Access::write}, {received_weights, Access::write}};
  dispatch.forward.collectives = {
      {CollectiveKind::all_to_all, group, v.rows, received, v.counts, source_counts},
      {CollectiveKind::all_to_all, group, v.row_weights, received_weights, v.counts, source_counts}};
  dispatch.backward.uses = {{v.counts},          {source_counts},          {dreceived},
                            {dreceived_weights}, {v.drows, Access::write}, {v.drow_weights, Access::write}};
  dispatch.backward.collectives = {
      {CollectiveKind::all_to_all, group, dreceived, v.drows, source_counts, v.counts},
      {CollectiveKind::all_to_all, group, dreceived_weights, v.drow_weights, source_counts, v.counts}};

  add_meanwhile();
  add_expert_mlp(b, spec, rows);
  Piece& experts = b.module().pieces.back();
  const auto written = [](std::initializer_list<ValueId> values) {
    std::vector<ValueUse> uses;
    for (ValueId value : values) uses.push_back({value, Access::write});
    return uses;
  };
  const auto arranged = written({rows.rows, rows.row_weights, rows.counts, rows.offsets, rows.in_use});
  const auto arrange = [=](const Run& r) {
    r.ops().arrange_rows(r.stream(), {r[source_counts], r[rows.counts], r[rows.offsets], r[of_row], r[of_received],
                                      r[rows.in_use], r[received_in_use], alignment});
    r.ops().gather_rows(r.stream(), {r[received], r[of_row], r[rows.rows], r[rows.in_use], 1});
    r.ops().gather_rows(r.stream(), {r[received_weights], r[of_row], r[rows.row_weights], r[rows.in_use], 1});
  };
  const auto give_back = [=](const Run& r) {
    r.ops().gather_rows(r.stream(), {r[rows.out], r[of_received], r[sent], r[received_in_use], 1});
  };
  surround(experts.forward, arranged,
           {{source_counts},
            {received},
            {received_weights},
            {of_row, Access::write},
            {of_received, Access::write},
            {received_in_use, Access::write},
            {sent, Access::write}},
           arrange, give_back);
  surround(experts.parts.front().code, arranged,
           {{source_counts},
            {received},
            {received_weights},
            {rows.row_weights, Access::write},
            {rows.in_use, Access::write},
            {of_row, Access::write},
            {of_received, Access::write},
            {received_in_use, Access::write}},
           arrange, {});
  surround(experts.parts.back().code, {}, {{of_received}, {received_in_use}, {sent, Access::write}}, {}, give_back);
  surround(
      experts.backward, written({rows.dout}),
      {{dsent},
       {of_row},
       {of_received},
       {received_in_use},
       {dreceived, Access::write},
       {dreceived_weights, Access::write}},
      [=](const Run& r) {
        r.ops().gather_rows(r.stream(), {r[dsent], r[of_row], r[rows.dout], r[rows.in_use], 1});
      },
      [=](const Run& r) {
        r.ops().gather_rows(r.stream(), {r[rows.drows], r[of_received], r[dreceived], r[received_in_use], 1});
        r.ops().gather_rows(r.stream(),
                            {r[rows.drow_weights], r[of_received], r[dreceived_weights], r[received_in_use], 1});
      });

  Piece& combine = b.piece("combine", Lane::exchange);
  combine.forward.uses = {{v.counts}, {source_counts}, {sent}, {v.out, Access::write}};
  combine.forward.collectives = {{CollectiveKind::all_to_all, group, sent, v.out, source_counts, v.counts}};
  combine.backward.uses = {{v.counts}, {source_counts}, {v.dout}, {dsent, Access::write}};
  combine.backward.collectives = {{CollectiveKind::all_to_all, group, v.dout, dsent, v.counts, source_counts}};
}

}  // namespace weft
