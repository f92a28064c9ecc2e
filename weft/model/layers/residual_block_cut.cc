// A residual block of several tensor ranks. T tokens of a micro-batch, H hidden.
//
// out_weight has only a weight gradient, that of W_out. As the first piece it is the last of the backward pass: it hides the
// gather of dy for the layer before, as the weight gradient of mix hides the scatter of d(xn).
//
// With sequence parallelism a rank has T / ranks tokens of the residual stream:
//   norm          its own tokens: xn
//   gather        all_gather xn; backward: reduce_scatter d(xn)
//   mix           all tokens, this rank's rows of W_in and columns of W_out: its part of a sum
//   gather_again  backward only: all_gather xn for the weight gradient, so that nobody keeps it for all tokens
//   scatter       reduce_scatter that part; backward: all_gather dy
//   residual      y = x + sum
// Without it every rank has all tokens: norm and residual are computed by all, the gather needs nothing in forward and an
// all_reduce of d(xn) in backward, the scatter an all_reduce in forward and nothing in backward.
#include <algorithm>

#include "weft/base/error.h"
#include "weft/device/operations.h"
#include "weft/model/layers/residual_block.h"
#include "weft/model/layers/tensor_transfers.h"
#include "weft/model/layers/uses.h"

namespace weft {

namespace {

// Uses without those of `left_out`; `replaced` in the place of others.
PieceCode changed(PieceCode code, std::initializer_list<ValueId> left_out,
                  std::initializer_list<std::pair<ValueId, ValueUse>> replaced) {
  std::erase_if(code.uses, [&](const ValueUse& use) {
    return use.value.valid() && std::find(left_out.begin(), left_out.end(), use.value) != left_out.end();
  });
  for (ValueUse& use : code.uses)
    for (const auto& [from, to] : replaced)
      if (use.value == from) {
        use = to;
        break;
      }
  // A part of the body may have read what the rest of it now reads, too.
  std::vector<ValueUse> once;
  for (const ValueUse& use : code.uses)
    if (std::none_of(once.begin(), once.end(), [&](const ValueUse& other) { return other.value == use.value; }))
      once.push_back(use);
  code.uses = std::move(once);
  return code;
}

// Those whose parts read the value.
RecomputeModules modules_that_read(const std::vector<PiecePart>& parts, ValueId value) {
  unsigned modules = 0;
  for (const PiecePart& part : parts)
    for (const ValueUse& use : part.code.uses)
      if (use.value == value) modules |= part.modules;
  return static_cast<RecomputeModules>(modules);
}

}  // namespace

void ResidualBlock::add_gradients(ModuleBuilder& b) {
  dx = b.gradient_of(x);
  dy = b.gradient_of(y);
  add_seams(b);
  Cut& c = cut_;
  c.all_xn = c.xn_again = xn;
  c.all_dy = dy;
  c.dxn_sum = dxn;
  if (!c.ranks.divide()) return;
  const DType compute = b.compute();
  const Shape all{b.tokens(), b.config().hidden}, here{b.stream_tokens(), b.config().hidden};
  const auto summed = [&](ValueId value) { b.module().values[value.index()].summed_over = c.ranks.group; };
  c.partial = b.activation("partial", compute, all);
  if (c.ranks.sequence) {
    c.all_xn = b.activation("all_xn", compute, all);
    c.xn_again = b.activation("all_xn_again", compute, all);
    c.all_dy = b.activation("d(all_y)", compute, all);
    c.sum = b.activation("sum", compute, here);
    c.dxn_sum = b.activation("d(xn)_sum", compute, here);
  } else {
    c.sum = b.activation("sum", compute, all);  // not in place, so that it can be computed again
    c.unused = b.scratch("uncounted", b.module().value(norm.gradient).dtype, {b.config().hidden});
  }
  summed(c.sum);
  summed(c.dxn_sum);
}

void ResidualBlock::add_cut_pieces(ModuleBuilder& b, PieceCode forward, PieceCode backward, PieceCode weight_gradient,
                                   std::vector<PiecePart> body, std::optional<SecondHalf> second,
                                   const std::function<void()>& add_more) const {
  const Cut& c = cut_;
  if (!exchanges_heads()) body = body_parts(std::move(body));
  add_cut_start(b, exchanges_heads() ? body.front().modules : modules_that_read(body, c.all_xn));
  WEFT_CHECK(!second || !exchanges_heads(), "a body with a sum over tensor ranks cannot exchange heads");
  if (exchanges_heads())
    add_head_pieces(b, std::move(forward), std::move(backward), std::move(weight_gradient), std::move(body));
  else
    add_cut_mix_piece(b, std::move(forward), std::move(backward), std::move(weight_gradient), std::move(body),
                      std::move(second));
  if (add_more) add_more();
  add_cut_end(b);
}

void ResidualBlock::add_cut_start(ModuleBuilder& b, RecomputeModules modules) const {
  add_out_weight_piece(b);
  add_norm_piece(b);
  add_gather_piece(b, modules);
}

void ResidualBlock::add_cut_end(ModuleBuilder& b) const {
  if (cut_.ranks.sequence) add_second_gather_piece(b);
  add_scatter_piece(b);
  add_residual_piece(b);
}

void ResidualBlock::add_cut_mix_piece(ModuleBuilder& b, PieceCode forward, PieceCode backward,
                                      PieceCode weight_gradient, std::vector<PiecePart> body,
                                      std::optional<SecondHalf> second) const {
  const Cut& c = cut_;
  Piece& mix = b.piece("mix");
  const bool last = !second;
  mix.forward = changed(std::move(forward), {x, norm.value, inverse, y}, {{xn, {c.all_xn}}});
  if (last) writes(mix.forward, {c.partial});
  for (const SharedInput& s : shared_inputs) {
    reads(mix.forward, {s.w.value});
    if (s.w.has_bias()) reads(mix.forward, {s.w.bias.value});
  }
  mix.forward.run = [block = *this, last, run = std::move(mix.forward.run)](const Run& r) {
    block.project_in(r, block.cut_.all_xn);
    run(r);
    if (last) block.project_out_partly(r);
  };
  mix.backward = changed(std::move(backward), {x, inverse, norm.value, norm.gradient, dx}, {{dy, {c.all_dy}}});
  for (const SharedInput& s : shared_inputs) reads(mix.backward, {s.w.value});
  mix.backward.run = [block = *this, last, run = std::move(mix.backward.run)](const Run& r) {
    if (last) block.project_out_backward(r, block.cut_.all_dy);
    run(r);
    block.project_in_backward(r);
  };
  mix.weight_gradient = std::move(weight_gradient);
  mix.parts = std::move(body);
  if (last) mix.parts.push_back(last_part());
  if (second) add_second_half(b, std::move(*second));
}

PiecePart ResidualBlock::last_part() const {
  PiecePart out{"out"};
  reads(out.code, {mixed, w_out.value});
  if (w_out.has_bias()) reads(out.code, {w_out.bias.value});
  writes(out.code, {cut_.partial});
  out.code.run = [block = *this](const Run& r) { block.project_out_partly(r); };
  return out;
}

void ResidualBlock::add_second_half(ModuleBuilder& b, SecondHalf second) const {
  const Cut& c = cut_;
  for (const ValueId sum : {second.sum, second.dsum}) b.module().values[sum.index()].summed_over = c.ranks.group;
  Piece& sums = b.piece("sums", Lane::tensor);
  sums.forward = summed(c.ranks, second.part, second.sum);
  sums.backward = summed(c.ranks, second.dpart, second.dsum);

  Piece& p = b.piece("finish");
  PiecePart own{"finish"}, out = last_part();
  own.code = second.forward;
  p.forward = second.forward;
  reads(p.forward, {w_out.value});
  if (w_out.has_bias()) reads(p.forward, {w_out.bias.value});
  writes(p.forward, {c.partial});
  p.forward.run = [block = *this, run = std::move(second.forward.run)](const Run& r) {
    run(r);
    block.project_out_partly(r);
  };
  p.parts = {std::move(own), std::move(out)};
  p.backward = std::move(second.backward);
  reads(p.backward, {c.all_dy, w_out.value});
  writes(p.backward, {dmixed});
  p.backward.run = [block = *this, run = std::move(p.backward.run)](const Run& r) {
    block.project_out_backward(r, block.cut_.all_dy);
    run(r);
  };
}

void ResidualBlock::add_out_weight_piece(ModuleBuilder& b) const {
  Piece& p = b.piece("out_weight");
  const ValueId dout = cut_.all_dy;
  reads(p.weight_gradient, {dout, seams_.mixed});
  adds_to(p.weight_gradient, {w_out.gradient});
  p.weight_gradient.run = [block = *this, dout](const Run& r) {
    block.w_out.weight_gradient(r, dout, block.seams_.mixed);
  };
}

void ResidualBlock::add_norm_piece(ModuleBuilder& b) const {
  Piece& p = b.piece("norm");
  p.modules = set_of({RecomputeModule::layernorm});
  reads(p.forward, {x, norm.value});
  writes(p.forward, {xn, inverse});
  p.forward.run = [block = *this](const Run& r) { block.normalise(r); };
  reads(p.backward, {dy, x, inverse, norm.value, cut_.dxn_sum});
  writes(p.backward, {dx});
  adds_to(p.backward, {norm.gradient});
  if (cut_.unused.valid()) writes(p.backward, {cut_.unused});
  p.backward.run = [block = *this](const Run& r) { block.normalise_backward(r); };
}

void ResidualBlock::add_gather_piece(ModuleBuilder& b, RecomputeModules modules) const {
  const Cut& c = cut_;
  Piece& p = b.piece("gather", Lane::tensor);
  p.modules = modules;
  if (c.ranks.sequence) {
    p.forward = gathered(c.ranks, xn, c.all_xn);
    p.backward = scattered(c.ranks, dxn, c.dxn_sum);
  } else {
    p.backward = summed(c.ranks, dxn);
  }
}

void ResidualBlock::add_second_gather_piece(ModuleBuilder& b) const {
  b.piece("gather_again", Lane::tensor).backward = gathered(cut_.ranks, xn, cut_.xn_again);
}

void ResidualBlock::add_scatter_piece(ModuleBuilder& b) const {
  const Cut& c = cut_;
  Piece& p = b.piece("scatter", Lane::tensor);
  if (c.ranks.sequence) {
    p.forward = scattered(c.ranks, c.partial, c.sum);
    p.backward = gathered(c.ranks, dy, c.all_dy);
  } else {
    p.forward = summed(c.ranks, c.partial, c.sum);
  }
}

void ResidualBlock::add_residual_piece(ModuleBuilder& b) const {
  Piece& p = b.piece("residual");
  reads(p.forward, {x, cut_.sum});
  writes(p.forward, {y});
  p.forward.run = [block = *this](const Run& r) {
    r.ops().add(r.stream(), {r[block.x], r[block.cut_.sum], r[block.y]});
  };
  if (!w_out.has_bias()) return;
  reads(p.weight_gradient, {dy});
  adds_to(p.weight_gradient, {w_out.bias.gradient});
  p.weight_gradient.run = [block = *this](const Run& r) {
    const Range rows = block.cut_.counted;
    const ValueId gradient = block.w_out.bias.gradient;
    r.ops().column_sum(r.stream(), {r[block.dy].slice_rows(rows.first, rows.count), r[gradient], r.store(gradient)});
  };
}

}  // namespace weft
