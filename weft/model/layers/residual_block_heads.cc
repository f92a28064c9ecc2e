// A residual block whose body has all tokens of some heads, on several context ranks.
//
//   in          xn = norm(x); in = W_in xn of this rank's tokens, its columns dealt out by heads
//   to_heads    all_to_all: tokens of all ranks, columns of this rank's heads
//   mix         the tokens in their order; mixed = f(in); the rows dealt out by tokens
//   to_tokens   all_to_all: tokens of this rank, columns of all heads
//   out         y = x + W_out mixed
// Tensor ranks have their pieces around these (residual_block_cut.cc): then `in` begins with all xn, and `out` ends with a
// part of a sum.
//
// Where ranks outnumber the heads of a section, several have the same one; its gradient is the sum of theirs.
#include <algorithm>
#include <tuple>

#include "weft/device/operations.h"
#include "weft/model/layers/block_attention.h"
#include "weft/model/layers/residual_block.h"
#include "weft/model/layers/uses.h"

namespace weft {

namespace {

PieceCode exchanged(const TokenRanks& ranks, ValueId from, ValueId to) {
  PieceCode code;
  reads(code, {from});
  writes(code, {to});
  code.collectives = {{CollectiveKind::all_to_all, ranks.group, from, to, {}, {}}};
  return code;
}

PieceCode without(PieceCode code, std::initializer_list<ValueId> left_out) {
  std::erase_if(code.uses, [&](const ValueUse& use) {
    return std::find(left_out.begin(), left_out.end(), use.value) != left_out.end();
  });
  return code;
}

// Of a code that works on rows of parameters: their gradients begin with zeros in every node.
class RunOnRows : public Run {
 public:
  RunOnRows(const Run& all, std::vector<ValueId> gradients) : all_(all), gradients_(std::move(gradients)) {
    operations_ = &all.ops();
    stream_ = &all.stream();
  }
  Tensor operator[](ValueId value) const override { return all_[value]; }
  Store store(ValueId value) const override {
    const bool own = std::find(gradients_.begin(), gradients_.end(), value) != gradients_.end();
    return own ? Store::write : all_.store(value);
  }

 private:
  const Run& all_;
  std::vector<ValueId> gradients_;
};

}  // namespace

void ResidualBlock::exchange_heads(ModuleBuilder& b, TokenRanks ranks, std::vector<HeadSection> columns_in,
                                   std::vector<HeadSection> columns_out) {
  Heads& h = heads_;
  h.ranks = std::move(ranks);
  h.in = h.din = std::move(columns_in);
  if (aside.weight.valid()) h.in.push_back({aside.column, aside.count, 1});
  h.mixed = std::move(columns_out);
  std::tie(h.order, h.back) = add_row_order(b, h.ranks);
}

ParameterValues ResidualBlock::rows_of_heads(ModuleBuilder& b, ParameterValues whole, std::vector<HeadSection> rows) {
  const auto scratch = [&](ValueId of) {
    const Value made = b.module().value(of);
    Shape shape = made.shape;
    const std::int64_t count = share_of(rows, heads_.ranks.size);
    shape = shape.dims() == 1 ? Shape{count} : Shape{count, shape[1]};
    return b.value({made.name + "_of_heads", ValueKind::scratch, made.dtype, shape});
  };
  const ParameterValues here{scratch(whole.value), scratch(whole.gradient)};
  heads_.parameters.push_back({whole, here, std::move(rows)});
  return here;
}

void ResidualBlock::add_seams(ModuleBuilder& b) {
  seams_ = {in, mixed, din, dmixed};
  if (!exchanges_heads()) return;
  Heads& h = heads_;
  const DType compute = b.compute();
  const std::int64_t t = b.tokens(), ranks = h.ranks.size;
  seams_.in = b.scratch("in_here", compute, {t, width_of(h.in)});
  seams_.mixed = b.activation("mixed_here", compute, {t, width_of(h.mixed)});
  seams_.din = b.activation("d(in_here)", compute, {t, width_of(h.din)});
  seams_.dmixed = b.scratch("d(mixed_here)", compute, {t, width_of(h.mixed)});
  const auto pair = [&](const std::string& name, std::int64_t width, ValueId& sent, ValueId& received) {
    sent = b.activation(name + "_sent", compute, {ranks, t, width});
    received = b.activation(name + "_received", compute, {ranks, t, width});
  };
  const std::int64_t w = share_of(h.in, ranks), dw = share_of(h.din, ranks), v = share_of(h.mixed, ranks);
  pair("in", w, h.in_sent, h.in_received);
  pair("mixed", v, h.mixed_sent, h.mixed_received);
  pair("d(in)", dw, h.din_sent, h.din_received);
  pair("d(mixed)", v, h.dmixed_sent, h.dmixed_received);
}

// To every rank the columns of its heads.
void ResidualBlock::deal_columns(const Run& r, const Tensor& from, ValueId sent,
                                 const std::vector<HeadSection>& sections) const {
  const std::int64_t ranks = heads_.ranks.size, rows = from.rows(), width = share_of(sections, ranks);
  const Tensor to = r[sent].reshape({ranks * rows, width});
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    std::int64_t column = 0;
    for (const HeadSection& s : sections) {
      r.ops().cast(r.stream(), {from.slice_columns(s.first_of(rank, ranks), s.share(ranks)),
                                to.slice_rows(rank * rows, rows).slice_columns(column, s.share(ranks))});
      column += s.share(ranks);
    }
  }
}

// The columns of every rank's heads; of a head that several have, their sum.
void ResidualBlock::join_columns(const Run& r, ValueId received, const Tensor& to,
                                 const std::vector<HeadSection>& sections) const {
  const std::int64_t ranks = heads_.ranks.size, rows = to.rows(), width = share_of(sections, ranks);
  const Tensor from = r[received].reshape({ranks * rows, width});
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    std::int64_t column = 0;
    for (const HeadSection& s : sections) {
      const std::int64_t first = s.first_of(rank, ranks);
      const Tensor part = from.slice_rows(rank * rows, rows).slice_columns(column, s.share(ranks)),
                   into = to.slice_columns(first, s.share(ranks));
      if (rank > 0 && s.first_of(rank - 1, ranks) == first)
        r.ops().add(r.stream(), {into, part, into});
      else
        r.ops().cast(r.stream(), {part, into});
      column += s.share(ranks);
    }
  }
}

void ResidualBlock::order_rows(const Run& r, ValueId from, ValueId to, bool back) const {
  const auto rows = [&](ValueId value) {
    const Tensor all = r[value];
    return all.shape.dims() == 2 ? all : all.reshape({all.shape[0] * all.shape[1], all.shape[2]});
  };
  r.ops().gather_rows(r.stream(), {rows(from), r[back ? heads_.back : heads_.order], rows(to)});
}

// `code` uses rows of parameters; what is made of it uses the parameters.
PieceCode ResidualBlock::on_own_heads(PieceCode code) const {
  std::vector<Heads::Rows> read, added;
  std::vector<ValueId> gradients;
  for (const Heads::Rows& p : heads_.parameters) {
    const auto used = [&](ValueId value) {
      return std::any_of(code.uses.begin(), code.uses.end(), [&](const ValueUse& use) { return use.value == value; });
    };
    if (used(p.here.value)) read.push_back(p);
    if (used(p.here.gradient)) {
      added.push_back(p);
      gradients.push_back(p.here.gradient);
    }
  }
  for (ValueUse& use : code.uses)
    for (const Heads::Rows& p : heads_.parameters)
      if (use.value == p.here.value || use.value == p.here.gradient) use.access = Access::write;
  for (const Heads::Rows& p : read) reads(code, {p.whole.value});
  for (const Heads::Rows& p : added) adds_to(code, {p.whole.gradient});
  if (read.empty() && added.empty()) return code;
  code.run = [read, added, gradients, ranks = heads_.ranks, run = std::move(code.run)](const Run& r) {
    const auto each = [&](const Heads::Rows& p, const auto& visit) {
      std::int64_t row = 0;
      for (const HeadSection& s : p.sections) {
        visit(s.first_of(ranks.rank, ranks.size), row, s.share(ranks.size));
        row += s.share(ranks.size);
      }
    };
    for (const Heads::Rows& p : read)
      each(p, [&](std::int64_t first, std::int64_t row, std::int64_t count) {
        r.ops().cast(r.stream(), {r[p.whole.value].slice_rows(first, count), r[p.here.value].slice_rows(row, count)});
      });
    run(RunOnRows(r, gradients));
    for (const Heads::Rows& p : added) {
      const Tensor all = r[p.whole.gradient];
      if (r.store(p.whole.gradient) == Store::write) r.ops().fill(r.stream(), {all, 0});
      each(p, [&](std::int64_t first, std::int64_t row, std::int64_t count) {
        const Tensor to = all.slice_rows(first, count);
        r.ops().add(r.stream(), {to, r[p.here.gradient].slice_rows(row, count), to});
      });
    }
  };
  return code;
}

void ResidualBlock::add_head_pieces(ModuleBuilder& b, PieceCode forward, PieceCode backward, PieceCode weight_gradient,
                                    std::vector<PiecePart> body) const {
  const Heads& h = heads_;
  add_to_heads_pieces(b, body.front().modules);

  Piece& mix = b.piece("mix");
  mix.forward = without(std::move(forward),
                        {x, xn, inverse, y, norm.value, w_in.value, w_out.value, w_in.bias.value, w_out.bias.value});
  reads(mix.forward, {h.in_received, h.order, h.back});
  writes(mix.forward, {h.mixed_sent});
  mix.forward.run = [block = *this, run = std::move(mix.forward.run)](const Run& r) {
    block.order_rows(r, block.heads_.in_received, block.in, false);
    run(r);
    block.order_rows(r, block.mixed, block.heads_.mixed_sent, true);
  };
  mix.forward = on_own_heads(std::move(mix.forward));

  PieceCode& first = body.front().code;
  reads(first, {h.in_received, h.order});
  first.run = [block = *this, run = std::move(first.run)](const Run& r) {
    block.order_rows(r, block.heads_.in_received, block.in, false);
    if (run) run(r);
  };
  PieceCode& last = body.back().code;
  reads(last, {h.back});
  writes(last, {h.mixed_sent});
  last.run = [block = *this, run = std::move(last.run)](const Run& r) {
    run(r);
    block.order_rows(r, block.mixed, block.heads_.mixed_sent, true);
  };
  for (PiecePart& part : body) part.code = on_own_heads(std::move(part.code));
  mix.parts = std::move(body);

  mix.backward =
      without(std::move(backward), {dy, x, xn, inverse, norm.value, norm.gradient, w_in.value, w_out.value, dxn, dx});
  reads(mix.backward, {h.dmixed_received, h.order, h.back});
  writes(mix.backward, {h.din_sent});
  mix.backward.run = [block = *this, run = std::move(mix.backward.run)](const Run& r) {
    block.order_rows(r, block.heads_.dmixed_received, block.dmixed, false);
    run(r);
    block.order_rows(r, block.din, block.heads_.din_sent, true);
  };
  mix.backward = on_own_heads(std::move(mix.backward));
  if (weight_gradient) mix.weight_gradient = on_own_heads(std::move(weight_gradient));
  // What only one node uses.
  const auto alone = [&](ValueId value, std::initializer_list<const PieceCode*> others) {
    for (const PieceCode* code : others)
      for (const ValueUse& use : code->uses)
        if (use.value == value) return;
    b.module().values[value.index()].kind = ValueKind::scratch;
  };
  alone(mixed, {&mix.backward, &mix.weight_gradient});
  alone(din, {&mix.weight_gradient});

  add_to_tokens_pieces(b);
}

void ResidualBlock::add_to_heads_pieces(ModuleBuilder& b, RecomputeModules modules) const {
  const Heads& h = heads_;
  PieceCode deal, joined;
  writes(deal, {seams_.in, h.in_sent});
  deal.run = [block = *this](const Run& r) {
    block.deal_columns(r, r[block.seams_.in], block.heads_.in_sent, block.heads_.in);
  };
  reads(joined, {h.din_received});
  writes(joined, {seams_.din});
  joined.run = [block = *this](const Run& r) {
    block.join_columns(r, block.heads_.din_received, r[block.seams_.din], block.heads_.din);
  };
  add_in_piece(b, std::move(deal), std::move(joined), {}, modules);
  Piece& to_heads = b.piece("to_heads", Lane::tensor);
  to_heads.modules = modules;
  to_heads.forward = exchanged(h.ranks, h.in_sent, h.in_received);
  to_heads.backward = exchanged(h.ranks, h.din_sent, h.din_received);
}

void ResidualBlock::add_to_tokens_pieces(ModuleBuilder& b) const {
  const Heads& h = heads_;
  Piece& to_tokens = b.piece("to_tokens", Lane::tensor);
  to_tokens.forward = exchanged(h.ranks, h.mixed_sent, h.mixed_received);
  to_tokens.backward = exchanged(h.ranks, h.dmixed_sent, h.dmixed_received);
  PieceCode join, dealt;
  reads(join, {h.mixed_received});
  writes(join, {seams_.mixed});
  join.run = [block = *this](const Run& r) {
    block.join_columns(r, block.heads_.mixed_received, r[block.seams_.mixed], block.heads_.mixed);
  };
  writes(dealt, {seams_.dmixed, h.dmixed_sent});
  dealt.run = [block = *this](const Run& r) {
    block.deal_columns(r, r[block.seams_.dmixed], block.heads_.dmixed_sent, block.heads_.mixed);
  };
  add_out_piece(b, std::move(join), std::move(dealt));
}

// A body that communicates in the middle, with all tokens of these ranks.
void ResidualBlock::add_spread_head_pieces(ModuleBuilder& b, SpreadBody body,
                                           const std::function<void(ModuleBuilder&)>& add_middle) const {
  const Heads& h = heads_;
  add_to_heads_pieces(b, body.modules);
  const auto first = b.module().pieces.size();

  Piece& prepare = b.piece("prepare");
  prepare.modules = body.modules;
  prepare.forward = std::move(body.before);
  reads(prepare.forward, {h.in_received, h.order});
  prepare.forward.run = [block = *this, run = std::move(prepare.forward.run)](const Run& r) {
    block.order_rows(r, block.heads_.in_received, block.in, false);
    run(r);
  };
  prepare.backward = std::move(body.before_backward);
  reads(prepare.backward, {h.back});
  writes(prepare.backward, {h.din_sent});
  prepare.backward.run = [block = *this, run = std::move(prepare.backward.run)](const Run& r) {
    run(r);
    block.order_rows(r, block.din, block.heads_.din_sent, true);
  };
  const std::vector<ValueUse> weight_uses = body.weight_gradient.uses;
  if (body.weight_gradient) prepare.weight_gradient = std::move(body.weight_gradient);
  if (std::none_of(weight_uses.begin(), weight_uses.end(), [&](const ValueUse& use) { return use.value == din; }))
    b.module().values[din.index()].kind = ValueKind::scratch;

  add_middle(b);

  Piece& finish = b.piece("finish");
  finish.forward = std::move(body.after);
  reads(finish.forward, {h.back});
  writes(finish.forward, {h.mixed_sent});
  finish.forward.run = [block = *this, run = std::move(finish.forward.run)](const Run& r) {
    run(r);
    block.order_rows(r, block.mixed, block.heads_.mixed_sent, true);
  };
  finish.backward = std::move(body.after_backward);
  reads(finish.backward, {h.dmixed_received, h.order});
  finish.backward.run = [block = *this, run = std::move(finish.backward.run)](const Run& r) {
    block.order_rows(r, block.heads_.dmixed_received, block.dmixed, false);
    run(r);
  };
  const std::vector<ValueUse>& later = finish.backward.uses;
  if (std::none_of(later.begin(), later.end(), [&](const ValueUse& use) { return use.value == mixed; }))
    b.module().values[mixed.index()].kind = ValueKind::scratch;
  for (std::size_t i = first; i < b.module().pieces.size(); ++i)
    for (PieceCode* code :
         {&b.module().pieces[i].forward, &b.module().pieces[i].backward, &b.module().pieces[i].weight_gradient})
      if (code->run) *code = on_own_heads(std::move(*code));
  add_to_tokens_pieces(b);
}

}  // namespace weft
