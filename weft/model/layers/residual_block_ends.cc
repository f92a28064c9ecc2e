// The first and the last piece of a residual block whose body communicates: what the block does before and after it. Of several
// tensor ranks norm and residual are pieces of their own (residual_block_cut.cc).
#include <algorithm>

#include "weft/device/operations.h"
#include "weft/model/layers/residual_block.h"
#include "weft/model/layers/uses.h"

namespace weft {

namespace {

void add_uses(PieceCode& code, const std::vector<ValueUse>& uses) {
  for (const ValueUse& use : uses) {
    const bool there = std::any_of(code.uses.begin(), code.uses.end(),
                                   [&](const ValueUse& other) { return other.value == use.value; });
    if (!there) code.uses.push_back(use);
  }
}

}  // namespace

PieceCode ResidualBlock::in_weight_gradient(const PieceCode& more) const {
  PieceCode code;
  const ValueId from = cut_.xn_again;
  reads(code, {seams_.din, from});
  adds_to(code, {w_in.gradient});
  if (w_in.has_bias()) adds_to(code, {w_in.bias.gradient});
  for (const SharedInput& s : shared_inputs) {
    adds_to(code, {s.w.gradient});
    if (s.w.has_bias()) adds_to(code, {s.w.bias.gradient});
  }
  add_uses(code, more.uses);
  code.run = [block = *this, from, rest = more.run](const Run& r) {
    const Tensor all = r[block.seams_.din], own = block.own_columns > 0 ? all.slice_columns(0, block.own_columns) : all;
    const ParameterValues w = block.w_in;
    r.ops().matmul(r.stream(), {own, r[from], r[w.gradient], Transposed::yes, Transposed::no, r.store(w.gradient)});
    if (block.w_in.has_bias())
      r.ops().column_sum(r.stream(), {own, r[block.w_in.bias.gradient], r.store(block.w_in.bias.gradient)});
    for (const SharedInput& s : block.shared_inputs) s.weight_gradient(r, all, r[from]);
    if (rest) rest(r);
  };
  return code;
}

void ResidualBlock::add_in_piece(ModuleBuilder& b, PieceCode before, PieceCode before_backward,
                                 PieceCode more_weight_gradient, RecomputeModules modules) const {
  const bool norms = !cut_.ranks.divide();
  const ValueId from = cut_.all_xn;
  PiecePart first{"norm", set_of({RecomputeModule::layernorm})}, rest{"project", modules};
  reads(first.code, {x, norm.value});
  writes(first.code, {xn, inverse});
  first.code.run = [block = *this](const Run& r) { block.normalise(r); };
  reads(rest.code, {from, w_in.value});
  if (w_in.has_bias()) reads(rest.code, {w_in.bias.value});
  reads(rest.code, {aside.weight});
  for (const SharedInput& s : shared_inputs) {
    reads(rest.code, {s.w.value});
    if (s.w.has_bias()) reads(rest.code, {s.w.bias.value});
  }
  add_uses(rest.code, before.uses);
  rest.code.run = [block = *this, from, run = std::move(before.run)](const Run& r) {
    block.project_in(r, from);
    run(r);
  };

  Piece& p = b.piece("in");
  if (norms) {
    p.forward.uses = first.code.uses;
    add_uses(p.forward, rest.code.uses);
    p.forward.run = [norm = first.code.run, project = rest.code.run](const Run& r) {
      norm(r);
      project(r);
    };
    p.parts = {std::move(first), std::move(rest)};
  } else {
    p.forward = std::move(rest.code);
    p.modules = modules;
  }

  p.backward.uses = std::move(before_backward.uses);
  reads(p.backward, {w_in.value});
  for (const SharedInput& s : shared_inputs) reads(p.backward, {s.w.value});
  writes(p.backward, {dxn});
  if (norms) {
    reads(p.backward, {dy, x, inverse, norm.value});
    writes(p.backward, {dx});
    adds_to(p.backward, {norm.gradient});
  }
  p.backward.run = [block = *this, norms, run = std::move(before_backward.run)](const Run& r) {
    run(r);
    block.project_in_backward(r);
    if (norms) block.normalise_backward(r);
  };
  p.weight_gradient = in_weight_gradient(more_weight_gradient);
}

void ResidualBlock::add_out_piece(ModuleBuilder& b, PieceCode after, PieceCode after_backward) const {
  const bool ends = !cut_.ranks.divide();
  const ValueId dout = cut_.all_dy;
  Piece& p = b.piece("out");
  p.forward.uses = std::move(after.uses);
  reads(p.forward, {w_out.value});
  if (w_out.has_bias()) reads(p.forward, {w_out.bias.value});
  if (ends)
    reads(p.forward, {x}), writes(p.forward, {y});
  else
    writes(p.forward, {cut_.partial});
  p.forward.run = [block = *this, ends, run = std::move(after.run)](const Run& r) {
    run(r);
    if (ends)
      block.project_out(r);
    else
      block.project_out_partly(r);
  };
  reads(p.backward, {dout, w_out.value});
  add_uses(p.backward, after_backward.uses);
  p.backward.run = [block = *this, dout, run = std::move(after_backward.run)](const Run& r) {
    block.project_out_backward(r, dout);
    run(r);
  };
  if (!ends) return;  // W_out belongs to another piece
  reads(p.weight_gradient, {dout, seams_.mixed});
  adds_to(p.weight_gradient, {w_out.gradient});
  if (w_out.has_bias()) adds_to(p.weight_gradient, {w_out.bias.gradient});
  p.weight_gradient.run = [block = *this, dout](const Run& r) {
    block.w_out.weight_gradient(r, dout, block.seams_.mixed);
    if (block.w_out.has_bias()) block.w_out.bias_gradient(r, dout);
  };
}

ValueId ResidualBlock::add_spread_pieces(ModuleBuilder& b, SpreadBody body,
                                         const std::function<void(ModuleBuilder&)>& add_middle) const {
  const bool cut = cut_.ranks.divide();
  if (cut) add_cut_start(b, body.modules);
  if (exchanges_heads()) {
    add_spread_head_pieces(b, std::move(body), add_middle);
  } else {
    add_in_piece(b, std::move(body.before), std::move(body.before_backward), std::move(body.weight_gradient),
                 body.modules);
    add_middle(b);
    add_out_piece(b, std::move(body.after), std::move(body.after_backward));
  }
  if (cut) add_cut_end(b);
  return y;
}

}  // namespace weft
