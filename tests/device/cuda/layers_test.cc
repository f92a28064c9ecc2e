// Norms, activations, rotary, attention, cross entropy, the optimizer.
#include <cmath>

#include <fmt/format.h>

#include "tests/device/cuda/beside.h"

namespace weft {
namespace {

class LayerOperations : public Beside {};

TEST_F(LayerOperations, RmsNorm) {
  struct Case {
    std::int64_t rows, groups, width;
    bool shared;
  };
  for (DType type : model_types)
    for (DType weight_type : {type, DType::f32})
      for (const Case& c :
           {Case{1, 1, 1, true}, Case{37, 1, 67, true}, Case{33, 4, 64, true}, Case{17, 3, 40, false},
            Case{600, 2, 128, true}, Case{9, 1, 2056, true}, Case{300, 1, 1024, true}, Case{70, 1, 2048, true},
            Case{5, 3, 264, false}, Case{11, 2, 1544, true}, Case{3, 1, 4104, true},
            // So many parts that blocks take several turns, the last of them not full.
            Case{2100, 5, 128, true}, Case{1100, 1, 520, true}, Case{700, 3, 264, false}, Case{530, 1, 2048, true},
            Case{300, 1, 4104, true}})
        for (bool zero_centred : {false, true}) {
          const bool many = c.rows * c.groups * c.width > 400000;
          if (many && (type != DType::bf16 || (weight_type == DType::f32) != zero_centred)) continue;  // two are enough
          SCOPED_TRACE(fmt::format("{} {} rows of {} x {}", name_of(type), c.rows, c.groups, c.width));
          const std::int64_t columns = c.groups * c.width, weights = c.shared ? c.width : columns;
          const auto matrix = [&](const char* name) {
            return HostTensor::normal(type, {c.rows, columns}, name, 1, columns + 8);
          };
          const HostTensor x = matrix("x"), dy = matrix("dy"), residual = matrix("residual"), y = matrix("y"),
                           dx = matrix("dx"), on_dy = dy, on_residual = residual;
          const HostTensor weight = HostTensor::normal(weight_type, {weights}, "weight");
          const HostTensor inverse(DType::f32, {c.rows * c.groups});
          const HostTensor dweight = HostTensor::normal(DType::f32, {weights}, "dweight"), added = dweight,
                           again = dweight;
          run([&](const Operations& ops, Stream& stream, const At& at) {
            ops.rms_norm(stream, {at(x), at(weight), at(y), at(inverse), c.groups, 1e-5, zero_centred});
            const auto back = [&](const HostTensor& d, const HostTensor& out, const Tensor& extra,
                                  const HostTensor& sums, Store store) {
              ops.rms_norm_backward(stream, {at(x), at(weight), at(inverse), at(d), at(out), extra, at(sums), c.groups,
                                             zero_centred, store});
            };
            back(dy, dx, at(residual), dweight, Store::write);
            back(dy, on_residual, at(on_residual), again, Store::write);
            back(on_dy, on_dy, {}, added, Store::add);
          });
          for (const HostTensor* t : {&y, &inverse}) expect(*t, c.width);
          // The gradient is a difference of terms as large as dy * weight * inverse.
          double largest = 0;
          for (double value : want(inverse)) largest = std::max(largest, value);
          const std::vector<double> terms(static_cast<std::size_t>(c.rows * columns), 20 * largest);
          for (const HostTensor* t : {&dx, &on_dy, &on_residual}) expect(*t, c.width, terms);
          const std::vector<double> magnitude(static_cast<std::size_t>(weights),
                                              4.0 * static_cast<double>(c.rows * c.groups));
          const std::int64_t after_another = std::min<std::int64_t>(c.rows * c.groups, 200);  // many are added in parts
          for (const HostTensor* t : {&dweight, &again, &added}) expect(*t, after_another, magnitude);
        }
}

TEST_F(LayerOperations, Activations) {
  using Kind = ActivationKind;
  for (DType type : model_types)
    for (Kind kind :
         {Kind::swiglu, Kind::squared_relu, Kind::gelu, Kind::gelu_erf, Kind::clamped_swiglu, Kind::quick_geglu})
      for (std::int64_t width : {1, 33, 64, 600})
        for (bool scaled : {false, true}) {
          SCOPED_TRACE(fmt::format("{} kind {} width {}", name_of(type), static_cast<int>(kind), width));
          ActivationSpec spec{kind};
          if (kind == Kind::clamped_swiglu || kind == Kind::quick_geglu) spec.limit = 1.5, spec.offset = 1;
          const std::int64_t rows = 29, columns = spec.gated() ? 2 * width : width;
          const HostTensor x = HostTensor::normal(type, {rows, columns}, "x", 2, columns + 8);
          const HostTensor dy = HostTensor::normal(type, {rows, width}, "dy"),
                           y = HostTensor::normal(type, {rows, width}, "y");
          const HostTensor dx = HostTensor::normal(type, {rows, columns}, "dx");
          const HostTensor scale = scaled ? HostTensor::normal(DType::f32, {rows}, "scale") : HostTensor();
          const HostTensor dscale = scaled ? HostTensor(DType::f32, {rows}) : HostTensor();
          const HostTensor used = scaled ? HostTensor::integers({17}) : HostTensor();
          run([&](const Operations& ops, Stream& stream, const At& at) {
            ops.activation(stream, {spec, at(x), at(y), at(scale), at(used)});
            ops.activation_backward(stream, {spec, at(x), at(scale), at(dy), at(dx), at(dscale), at(used)});
          });
          expect(y, 20);
          expect(dx, 20);
          if (scaled) expect(dscale, width + 20, std::vector<double>(29, 30.0 * static_cast<double>(width)));
        }
}

TEST_F(LayerOperations, Rotary) {
  for (DType type : model_types)
    for (RotaryStyle style : {RotaryStyle::half_split, RotaryStyle::interleaved})
      for (bool in_place : {false, true})
        for (int size = 0; size < 6; ++size) {
          const bool positions = size % 2 == 1;
          const std::int64_t heads = 3, dim = size < 2 ? 20 : 40, length = 7, tokens = 14;
          const std::int64_t width = size < 2 ? 12 : size < 4 ? 16 : 32;
          const HostTensor x =
              HostTensor::normal(type, {tokens, heads * dim}, "x", 1, heads * dim + (size < 2 ? 4 : 8));
          const HostTensor y(type, {tokens, heads * dim});
          const HostTensor cosine = HostTensor::normal(DType::f32, {16, width / 2}, "cos"),
                           sine = HostTensor::normal(DType::f32, {16, width / 2}, "sin");
          const HostTensor at_positions =
              positions ? HostTensor::integers({3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 15}) : HostTensor();
          run([&](const Operations& ops, Stream& stream, const At& at) {
            ops.rotary(stream, {at(x), in_place ? at(x) : at(y), at(cosine), at(sine), at(at_positions), heads, dim,
                                width, length, style, positions});
          });
          expect(in_place ? x : y, 4);
        }
}

struct AttentionCase {
  std::int64_t batch, length, heads, kv_heads, dim, value_dim, window;
  bool sinks, documents, repeatable = true;
};

constexpr AttentionCase attention_cases[] = {
    {1, 1, 1, 1, 8, 8, 0, false, false},        {2, 37, 4, 2, 16, 16, 0, false, false},
    {1, 100, 2, 1, 24, 40, 0, true, false},     {2, 65, 4, 4, 64, 64, 0, false, false},
    {1, 200, 4, 1, 128, 128, 0, true, true},    {1, 150, 2, 2, 64, 64, 33, true, false},
    {1, 170, 2, 2, 192, 128, 0, false, true},   {3, 64, 6, 2, 128, 128, 0, false, false},
    {1, 257, 2, 1, 128, 128, 100, false, true}, {2, 160, 4, 2, 128, 128, 0, false, false, false}};

// One test per type and case: compute-sanitizer takes minutes for all of them.
class AttentionOperations : public Beside, public testing::WithParamInterface<std::tuple<DType, std::size_t>> {};

TEST_P(AttentionOperations, ForwardAndBackward) {
  const DType type = std::get<0>(GetParam());
  AttentionCase c = attention_cases[std::get<1>(GetParam())];
  if (sanitizing()) c.length = std::min<std::int64_t>(c.length, 80);  // still more than a tile
  SCOPED_TRACE(fmt::format("{} {}x{} heads {}/{} dims {}/{} window {}", name_of(type), c.batch, c.length, c.heads,
                           c.kv_heads, c.dim, c.value_dim, c.window));
  const std::int64_t T = c.batch * c.length;
  const auto matrix = [&](const char* name, std::int64_t columns) {
    return HostTensor::normal(type, {T, columns}, name, 1, columns + 16);
  };
  const HostTensor q = matrix("q", c.heads * c.dim), k = matrix("k", c.kv_heads * c.dim),
                   v = matrix("v", c.kv_heads * c.value_dim);
  const HostTensor out = matrix("out", c.heads * c.value_dim), dout = matrix("dout", c.heads * c.value_dim);
  const HostTensor dq = matrix("dq", c.heads * c.dim), dk = matrix("dk", c.kv_heads * c.dim),
                   dv = matrix("dv", c.kv_heads * c.value_dim);
  const HostTensor lse(DType::f32, {c.heads, T}), delta(DType::f32, {c.heads, T});
  const HostTensor sinks = c.sinks ? HostTensor::normal(type, {c.heads}, "sinks") : HostTensor();
  const HostTensor dsinks = c.sinks ? HostTensor(DType::f32, {c.heads}) : HostTensor();
  HostTensor boundaries;
  if (c.documents) {
    std::vector<std::int32_t> begins;
    for (std::int32_t t = 0, begin = 0; t < T; ++t) {
      if (t == 5 || t == 70 || t == 71 || t == 140) begin = t;
      begins.push_back(begin);
    }
    boundaries = HostTensor::integers(begins);
  }
  run(
      [&](const Operations& ops, Stream& stream, const At& at) {
        Attention a{
            at(q),    at(k),   at(v),      at(out), at(lse),     at(sinks), at(boundaries),
            c.length, c.heads, c.kv_heads, c.dim,   c.value_dim, c.window,  1 / std::sqrt(static_cast<double>(c.dim))};
        ops.attention(stream, a);
        AttentionBackward b{a, at(dout), at(dq), at(dk), at(dv), at(dsinks), at(delta), c.repeatable};
        ops.attention_backward(stream, b);
      },
      c.repeatable);
  // Inside, scores have dim terms, sums T; in bf16 probabilities, out and gradients of scores are rounded once more.
  const double extra = type == DType::bf16 ? 2 : 0;
  const std::int64_t length = 4 * (c.dim + c.length);
  const auto fits = [&](const HostTensor& x, double magnitude, double roundings) {
    expect(x, length, std::vector<double>(static_cast<std::size_t>(x.elements()), magnitude), roundings);
  };
  fits(out, 4, extra);
  fits(lse, 8, 0);
  const double group = static_cast<double>(c.heads / c.kv_heads);
  fits(dv, 12 * group, extra);
  fits(dq, 16, extra);
  fits(dk, 16 * group, extra);
  if (c.sinks) fits(dsinks, 8 * static_cast<double>(T), extra);
}

INSTANTIATE_TEST_SUITE_P(Cases, AttentionOperations,
                         testing::Combine(testing::ValuesIn(model_types),
                                          testing::Range(std::size_t{0}, std::size(attention_cases))));

TEST_F(LayerOperations, CrossEntropy) {
  for (DType type : model_types)
    for (std::int64_t rows : {1, 19})
      for (std::int64_t columns : {3, 64, 1000})
        for (bool in_place : {false, true}) {
          if (in_place && type != DType::f32) continue;
          SCOPED_TRACE(fmt::format("{} {} x {}", name_of(type), rows, columns));
          const HostTensor logits = HostTensor::normal(DType::f32, {rows, columns}, "logits", 3);
          const std::int64_t vocabulary = columns > 10 ? columns - 5 : columns;
          HostTensor labels(DType::i32, {rows});
          for (std::int64_t r = 0; r < rows; ++r)
            labels.set(r, r % 4 == 3 ? -1 : static_cast<double>(r * 7 % vocabulary));
          const HostTensor scale = HostTensor::of(DType::f64, {1}, {0.25}), dlogits(type, {rows, columns});
          const HostTensor loss = HostTensor::of(DType::f32, {1}, {2.0}), alone = loss, losses(DType::f32, {rows});
          const HostTensor again = logits;
          run([&](const Operations& ops, Stream& stream, const At& at) {
            ops.cross_entropy(stream, {at(again), at(labels), at(scale), at(alone), {}, {}, vocabulary, Store::write});
            ops.cross_entropy(stream, {at(logits), at(labels), at(scale), at(loss), in_place ? at(logits) : at(dlogits),
                                       at(losses), vocabulary, Store::add});
          });
          expect(in_place ? logits : dlogits, 60);
          for (const HostTensor* x : {&loss, &alone, &losses}) expect(*x, 60);
        }
}

// Rows that several blocks share.
TEST_F(LayerOperations, CrossEntropyOfLongRows) {
  for (DType type : model_types)
    for (std::int64_t columns : {20000, 70001, 131096})
      for (bool in_place : {false, true}) {
        if (in_place && type != DType::f32) continue;
        SCOPED_TRACE(fmt::format("{} {}", name_of(type), columns));
        const std::int64_t rows = 5, vocabulary = columns - 13;
        const HostTensor logits = HostTensor::normal(DType::f32, {rows, columns}, "logits", 3);
        const HostTensor labels =
            HostTensor::integers({0, static_cast<std::int32_t>(vocabulary - 1), -1, 16384, 12345});
        const HostTensor scale = HostTensor::of(DType::f64, {1}, {0.25}), dlogits(type, {rows, columns});
        const HostTensor loss = HostTensor::of(DType::f32, {1}, {2.0}), losses(DType::f32, {rows});
        run([&](const Operations& ops, Stream& stream, const At& at) {
          ops.cross_entropy(stream, {at(logits), at(labels), at(scale), at(loss), in_place ? at(logits) : at(dlogits),
                                     at(losses), vocabulary, Store::add});
        });
        expect(in_place ? logits : dlogits, 60);
        for (const HostTensor* x : {&loss, &losses}) expect(*x, 60);
      }
}

TEST_F(LayerOperations, CrossEntropyOfASplitVocabulary) {
  for (DType type : model_types)
    for (std::int64_t columns : {3, 64, 1000, 40001}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(type), columns));
      const std::int64_t rows = 19, vocabulary = columns > 10 ? columns - 5 : columns, ranks = 3, own = 1;
      const HostTensor logits = HostTensor::normal(DType::f32, {rows, columns}, "logits", 3);
      HostTensor labels(DType::i32, {rows}), statistics(DType::f64, {ranks * rows, 3});
      for (std::int64_t r = 0; r < rows; ++r) {
        labels.set(r, r % 4 == 3 ? -1 : static_cast<double>(r * 71 % (ranks * vocabulary)));
        for (std::int64_t k = 0; k < ranks; ++k) {
          statistics.set(k * rows + r, 0, 5 + static_cast<double>(k));
          statistics.set(k * rows + r, 1, 3);
        }
      }
      const HostTensor mine(DType::f64, {rows, 3}), scale = HostTensor::of(DType::f64, {1}, {0.25});
      const HostTensor dlogits(type, {rows, columns}), loss = HostTensor::of(DType::f32, {1}, {2.0}), alone = loss;
      run([&](const Operations& ops, Stream& stream, const At& at) {
        const std::int64_t first = own * vocabulary;
        ops.vocabulary_statistics(stream, {at(logits), at(labels), at(mine), first, vocabulary});
        ops.split_cross_entropy(
            stream,
            {at(logits), at(labels), at(scale), at(statistics), at(alone), {}, first, vocabulary, Store::write});
        ops.split_cross_entropy(stream, {at(logits), at(labels), at(scale), at(statistics), at(loss), at(dlogits),
                                         first, vocabulary, Store::add});
      });
      expect(dlogits, 60);
      for (const HostTensor* x : {&loss, &alone}) expect(*x, 60);
      expect(mine, 2048, std::vector<double>(static_cast<std::size_t>(mine.elements()), 0.0));
    }
}

TEST_F(LayerOperations, Optimizer) {
  struct Slab {
    HostTensor weight, remainder, m, v, gradient;
    HostTensor whole;  // what a weight and its remainder are together
    bool decay;
  };
  std::vector<Slab> slabs;
  const std::int64_t lengths[] = {1, 7, 4096, 40001, 8192, 300, 128};
  for (int i = 0; i < 80; ++i) {
    const std::int64_t n = lengths[i % 7];
    const bool split = i % 3 != 0;
    const std::string name = fmt::format("s{}", i);
    slabs.push_back({HostTensor::normal(split ? DType::bf16 : DType::f32, {n}, name),
                     {},
                     HostTensor::normal(DType::f32, {n}, name + "m"),
                     HostTensor::normal(DType::f32, {n}, name + "v"),
                     HostTensor::normal(i % 5 == 0 ? DType::bf16 : DType::f32, {n}, name + "g"),
                     {},
                     i % 4 != 0});
    Slab& slab = slabs.back();
    for (std::int64_t j = 0; j < n; ++j) slab.v.set(j, std::abs(slab.v.at(j)));
    if (!split) continue;
    slab.whole = HostTensor::normal(DType::f32, {n}, name + "w");
    slab.remainder = HostTensor(DType::i16, {n});
    for (std::int64_t j = 0; j < n; ++j) {
      const SplitFloat halves = split_float(static_cast<float>(slab.whole.at(j)));
      slab.weight.set(j, static_cast<double>(static_cast<float>(halves.weight)));
      slab.remainder.set(j, halves.remainder);
    }
  }
  HostTensor values(DType::f64, {StepValues::count}), squares(DType::f64, {2});
  values.set(StepValues::learning_rate, 0.01);
  values.set(StepValues::weight_decay, 0.1);
  values.set(StepValues::correction1, 0.3);
  values.set(StepValues::correction2, 0.2);
  const HostTensor loss = HostTensor::of(DType::f32, {1}, {1.0});
  run([&](const Operations& ops, Stream& stream, const At& at) {
    std::vector<Tensor> gradients, few;
    std::vector<AdamSlab> all, some;
    for (const Slab& s : slabs) {
      gradients.push_back(at(s.gradient));
      if (few.size() < 3) few.push_back(at(s.gradient));
      AdamSlab slab{at(s.weight), {}, at(s.m), at(s.v), at(s.gradient), s.decay};
      if (s.remainder.elements() > 0) {  // one double on the CPU
        if (slab.weight.dtype == DType::f64)
          slab.weight = at(s.whole);
        else
          slab.remainder = at(s.remainder);
      }
      (all.size() < 70 ? all : some).push_back(slab);
    }
    ops.sum_of_squares(stream, {gradients, at(squares).slice_rows(0, 1)});
    ops.sum_of_squares(stream, {few, at(squares).slice_rows(1, 1)});
    ops.sum_of_squares(stream, {few, at(squares).slice_rows(1, 1), Store::add});
    ops.clip_factor(stream, {at(squares), at(loss), at(values), 1.0});
    ops.adamw(stream, {all, at(values)});
    ops.adamw(stream, {some, at(values)});
  });
  for (std::int64_t i = 0; i < StepValues::count; ++i)
    EXPECT_NEAR(got(values).at(i), want(values)[static_cast<std::size_t>(i)],
                1e-12 * std::abs(want(values)[static_cast<std::size_t>(i)]));
  for (const Slab& s : slabs) {
    for (const HostTensor* x : {&s.m, &s.v}) expect(*x, 20);
    if (s.remainder.elements() == 0) {
      expect(s.weight, 20);
      continue;
    }
    const std::vector<double> wanted = want(s.whole);
    std::vector<double> joined;
    for (std::int64_t i = 0; i < s.weight.elements(); ++i) {
      const SplitFloat halves{bfloat16(static_cast<float>(got(s.weight).at(i))),
                              static_cast<std::int16_t>(got(s.remainder).at(i))};
      const float value = join_float(halves);
      EXPECT_EQ(split_float(value).weight.bits, halves.weight.bits) << "the weight is not the nearest";
      joined.push_back(static_cast<double>(value));
    }
    expect_close(HostTensor::of(DType::f32, {s.weight.elements()}, joined), wanted, 20);
  }
}

TEST_F(LayerOperations, Sgd) {
  struct Slab {
    HostTensor weight, remainder, momentum, gradient;
    HostTensor whole;  // what a weight and its remainder are together
  };
  for (const double momentum : {0.9, 0.0}) {
    std::vector<Slab> slabs;
    const std::int64_t lengths[] = {1, 7, 4096, 40001, 8192, 300, 128};
    for (int i = 0; i < 40; ++i) {  // more than a short list holds
      const std::int64_t n = lengths[i % 7];
      const std::string name = fmt::format("s{}", i);
      const HostTensor whole = HostTensor::normal(DType::f32, {n}, name + "w");
      Slab slab{whole, {}, {}, HostTensor::normal(i % 5 == 0 ? DType::bf16 : DType::f32, {n}, name + "g"), whole};
      if (momentum != 0) slab.momentum = HostTensor::normal(DType::f32, {n}, name + "m");
      if (i % 3 != 0) {
        slab.weight = HostTensor(DType::bf16, {n});
        slab.remainder = HostTensor(DType::i16, {n});
        for (std::int64_t j = 0; j < n; ++j) {
          const SplitFloat halves = split_float(static_cast<float>(whole.at(j)));
          slab.weight.set(j, static_cast<double>(static_cast<float>(halves.weight)));
          slab.remainder.set(j, halves.remainder);
        }
      }
      slabs.push_back(slab);
    }
    HostTensor values(DType::f64, {StepValues::count});
    values.set(StepValues::learning_rate, 0.01);
    values.set(StepValues::weight_decay, 0.1);
    values.set(StepValues::clip_factor, 0.5);
    values.set(StepValues::finite, 1);
    run([&](const Operations& ops, Stream& stream, const At& at) {
      std::vector<SgdSlab> all;
      for (const Slab& s : slabs) {
        SgdSlab slab{at(s.weight), {}, momentum != 0 ? at(s.momentum) : Tensor{}, at(s.gradient), all.size() % 4 != 0};
        if (s.remainder.elements() > 0) {  // one double on the CPU
          if (slab.weight.dtype == DType::f64)
            slab.weight = at(s.whole);
          else
            slab.remainder = at(s.remainder);
        }
        all.push_back(slab);
      }
      ops.sgd(stream, {all, at(values), momentum});
    });
    for (const Slab& s : slabs) {
      if (momentum != 0) expect(s.momentum, 20);
      if (s.remainder.elements() == 0) {
        expect(s.weight, 20);
        continue;
      }
      std::vector<double> joined;
      for (std::int64_t i = 0; i < s.weight.elements(); ++i)
        joined.push_back(static_cast<double>(join_float(
            {bfloat16(static_cast<float>(got(s.weight).at(i))), static_cast<std::int16_t>(got(s.remainder).at(i))})));
      expect_close(HostTensor::of(DType::f32, {s.weight.elements()}, joined), want(s.whole), 20);
    }
  }
}

TEST_F(LayerOperations, ABadStepLeavesWeightsUntouched) {
  const HostTensor weight = HostTensor::normal(DType::f32, {100}, "w"), m(DType::f32, {100}), v(DType::f32, {100});
  HostTensor gradient = HostTensor::normal(DType::f32, {100}, "g"), values(DType::f64, {StepValues::count}),
             sum(DType::f64, {1});
  gradient.set(50, NAN);
  const HostTensor loss = HostTensor::of(DType::f32, {1}, {1.0});
  run([&](const Operations& ops, Stream& stream, const At& at) {
    const std::vector<Tensor> all{at(gradient)};
    const std::vector<AdamSlab> slabs{{at(weight), {}, at(m), at(v), at(gradient)}};
    ops.sum_of_squares(stream, {all, at(sum)});
    ops.clip_factor(stream, {at(sum), at(loss), at(values), 1.0});
    ops.adamw(stream, {slabs, at(values)});
  });
  EXPECT_EQ(got(values).at(StepValues::finite), 0);
  EXPECT_TRUE(got(weight).same_bits(weight));
}

}  // namespace
}  // namespace weft
