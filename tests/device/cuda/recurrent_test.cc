// What recurrent layers are made of: convolution, Mamba-2's scan, gated norm, L2 norm; layer norm and gates.
#include <cmath>

#include <fmt/format.h>

#include "tests/device/cuda/beside.h"

namespace weft {
namespace {

class RecurrentOperations : public Beside {
 protected:
  // Sums of `length` terms, each at most `factor` times the largest result.
  void fits(const HostTensor& x, std::int64_t length, double factor = 1, double roundings = 0) const {
    if (x.elements() == 0) return;
    double largest = 0;
    for (double value : want(x)) largest = std::max(largest, std::abs(value));
    expect(x, length, std::vector<double>(static_cast<std::size_t>(x.elements()), factor * largest), roundings);
  }
};

// Documents of 5 and of 40 tokens, one that begins with the second chunk; none crosses a sequence.
HostTensor documents(bool wanted, std::int64_t tokens, std::int64_t length, std::int64_t chunk) {
  if (!wanted) return {};
  std::vector<std::int32_t> starts;
  for (std::int64_t t = 0, start = 0; t < tokens; ++t) {
    if (t % length == 0 || t - start == (start % 2 == 0 ? 5 : 40) || t == chunk) start = t;
    starts.push_back(static_cast<std::int32_t>(start));
  }
  return HostTensor::integers(starts);
}

TEST_F(RecurrentOperations, CausalConvolution) {
  struct Case {
    std::int64_t batch, length, channels, taps;
    bool bias, documents;
  };
  for (DType type : model_types)
    for (DType weight_type : {type, DType::f32})
      for (const Case& c :
           {Case{1, 1, 1, 4, true, false}, Case{2, 37, 67, 4, true, false}, Case{1, 100, 64, 4, false, true},
            Case{3, 33, 40, 4, true, true}, Case{1, 70, 24, 3, true, false}, Case{2, 2, 16, 2, true, false},
            Case{1, 300, 136, 4, true, true}})
        for (bool silu : {true, false}) {
          SCOPED_TRACE(
              fmt::format("{} {}x{} channels {} taps {}", name_of(type), c.batch, c.length, c.channels, c.taps));
          const std::int64_t T = c.batch * c.length;
          const auto matrix = [&](const char* name) {
            return HostTensor::normal(type, {T, c.channels}, name, 1, c.channels + 8);
          };
          const HostTensor x = matrix("x"), y = matrix("y"), dy = matrix("dy"), dx = matrix("dx");
          const HostTensor weight = HostTensor::normal(weight_type, {c.channels, c.taps}, "weight");
          const HostTensor bias = c.bias ? HostTensor::normal(weight_type, {c.channels}, "bias") : HostTensor();
          const HostTensor dweight = HostTensor::normal(DType::f32, {c.channels, c.taps}, "dweight"), added = dweight;
          const HostTensor dbias = c.bias ? HostTensor::normal(DType::f32, {c.channels}, "dbias") : HostTensor(),
                           added_bias = dbias;
          const HostTensor starts = documents(c.documents, T, c.length, 20);
          run([&](const Operations& ops, Stream& stream, const At& at) {
            CausalConvolution f{at(x), at(weight), at(bias), at(y), at(starts), c.length, silu};
            ops.causal_convolution(stream, f);
            f.y = {};
            ops.causal_convolution_backward(stream, {f, at(dy), at(dx)});
            ops.causal_convolution_weight_gradient(stream, {f, at(dy), at(dweight), at(dbias)});
            ops.causal_convolution_weight_gradient(stream, {f, at(dy), at(added), at(added_bias), Store::add});
          });
          fits(y, c.taps + 12);
          fits(dx, 2 * c.taps + 20);
          for (const HostTensor* t : {&dweight, &added, &dbias, &added_bias}) fits(*t, T + c.taps + 20);
        }
}

struct ScanCase {
  std::int64_t batch, length, chunk, heads, groups, dim, state;
  bool skip = true, documents = false, limits = false;
};

// Plain sizes, then those of tensor cores: one token, chunks that do not fill, more heads than a block takes.
const ScanCase scans[] = {{1, 1, 8, 1, 1, 1, 1},
                          {2, 1, 128, 2, 2, 3, 5, false},
                          {1, 37, 8, 1, 1, 7, 9},
                          {2, 100, 64, 6, 2, 16, 12},
                          {1, 130, 64, 4, 1, 5, 33, true, true},
                          {2, 61, 16, 4, 4, 8, 4, true, true, true},
                          {1, 1, 128, 1, 1, 64, 128},
                          {2, 130, 128, 2, 2, 64, 128, false},
                          {1, 300, 128, 3, 1, 64, 128, true, true},
                          {1, 200, 100, 2, 1, 64, 64, true, false, true},
                          {2, 70, 32, 10, 1, 64, 64, true, true}};

TEST_F(RecurrentOperations, StateScan) {
  for (DType type : model_types)
    for (const ScanCase& c : scans) {
      SCOPED_TRACE(fmt::format("{} {}x{} in {}, {} heads of {}, {} groups of {}", name_of(type), c.batch, c.length,
                               c.chunk, c.heads, c.dim, c.groups, c.state));
      const std::int64_t T = c.batch * c.length, chunks = chunks_of(T, c.length, c.chunk);
      const auto rows = [&](std::int64_t columns, const char* name) {
        return HostTensor::normal(type, {T, columns}, name, 1, columns + 8);
      };
      const HostTensor x = rows(c.heads * c.dim, "x"), B = rows(c.groups * c.state, "B"),
                       C = rows(c.groups * c.state, "C"), dt = rows(c.heads, "dt"), y = rows(c.heads * c.dim, "y");
      const HostTensor dy = rows(c.heads * c.dim, "dy"), dx = rows(c.heads * c.dim, "dx"),
                       dB = rows(c.groups * c.state, "dB"), dC = rows(c.groups * c.state, "dC"),
                       ddt = rows(c.heads, "ddt");
      const auto per_head = [&](const char* name, double scale) {
        return HostTensor::normal(DType::f32, {c.heads}, name, scale);
      };
      const HostTensor A_log = per_head("A_log", 0.5), dt_bias = per_head("dt_bias", 1);
      const HostTensor D = c.skip ? per_head("D", 1) : HostTensor();
      const HostTensor dA_log = per_head("dA_log", 1), ddt_bias = per_head("ddt_bias", 1);
      const HostTensor dD = c.skip ? per_head("dD", 1) : HostTensor();
      const HostTensor twice = per_head("twice", 1), twice_bias = per_head("twice_bias", 1);
      const HostTensor twice_D = c.skip ? per_head("twice_D", 1) : HostTensor();
      const HostTensor states(DType::f32, {chunks, c.heads * c.dim * c.state}), dstates = states;
      const HostTensor sums(DType::f32, {chunks, 3 * c.heads});
      const HostTensor starts = documents(c.documents, T, c.length, c.chunk);
      run([&](const Operations& ops, Stream& stream, const At& at) {
        StateScan f{at(x), at(B), at(C), at(dt), at(A_log), at(dt_bias), at(D), at(y), at(states), at(starts)};
        f.length = c.length;
        f.chunk = c.chunk;
        f.heads = c.heads;
        f.groups = c.groups;
        f.dim = c.dim;
        f.state = c.state;
        if (c.limits) f.dt_least = 0.4, f.dt_most = 1.1;
        ops.state_scan(stream, f);
        f.y = {};
        StateScanBackward b{f,          at(dy),       at(dx), at(dB),      at(dC),  at(ddt),
                            at(dA_log), at(ddt_bias), at(dD), at(dstates), at(sums)};
        ops.state_scan_backward(stream, b);
        b.dA_log = at(twice);
        b.ddt_bias = at(twice_bias);
        b.dD = at(twice_D);
        b.store = Store::add;
        ops.state_scan_backward(stream, b);
      });
      // In bf16 products of pairs, steps times x, and states are rounded on their way into the next product.
      const double extra = type == DType::bf16 ? 3 : 0;
      const std::int64_t chunk = std::min(c.chunk, c.length), length = chunk + c.state + c.dim + 32;
      fits(states, length, 1, extra);
      fits(y, length, 1, extra);
      for (const HostTensor* t : {&dstates, &dx, &dB, &dC}) fits(*t, length, 1, extra);
      fits(ddt, length + chunk * c.dim, 1, extra);
      for (const HostTensor* t : {&dA_log, &ddt_bias, &dD, &twice, &twice_bias, &twice_D})
        fits(*t, T * c.dim + length, 1, extra);
    }
}

struct DeltaCase {
  std::int64_t batch, length, chunk, heads, key_heads, dim, value_dim;
  bool documents = false;
};

const DeltaCase deltas[] = {{1, 1, 64, 1, 1, 1, 1},
                            {2, 1, 64, 2, 1, 3, 5},
                            {1, 37, 8, 1, 1, 7, 9},
                            {2, 80, 64, 4, 2, 16, 12},
                            {1, 150, 64, 3, 3, 5, 33, true},
                            {1, 1, 64, 1, 1, 128, 128},
                            {1, 150, 64, 2, 1, 128, 128},
                            {2, 90, 64, 2, 2, 64, 128, true},
                            {1, 100, 40, 4, 2, 128, 64, true},
                            {2, 100, 40, 4, 2, 128, 128, true}};

TEST_F(RecurrentOperations, DeltaRule) {
  for (DType type : model_types)
    for (const DeltaCase& c : deltas) {
      SCOPED_TRACE(fmt::format("{} {}x{} in {}, {} heads of {}, {} key heads of {}", name_of(type), c.batch, c.length,
                               c.chunk, c.heads, c.value_dim, c.key_heads, c.dim));
      const std::int64_t T = c.batch * c.length, chunks = chunks_of(T, c.length, c.chunk);
      const double unit = 1 / std::sqrt(static_cast<double>(c.dim));  // keys of length one, about
      const auto rows = [&](std::int64_t columns, const char* name, double scale = 1) {
        return HostTensor::normal(type, {T, columns}, name, scale, columns + 8);
      };
      const HostTensor q = rows(c.key_heads * c.dim, "q", unit), k = rows(c.key_heads * c.dim, "k", unit),
                       v = rows(c.heads * c.value_dim, "v"), a = rows(c.heads, "a"), b = rows(c.heads, "b"),
                       y = rows(c.heads * c.value_dim, "y");
      const HostTensor dy = rows(c.heads * c.value_dim, "dy"), dq = rows(c.key_heads * c.dim, "dq"),
                       dk = rows(c.key_heads * c.dim, "dk"), dv = rows(c.heads * c.value_dim, "dv"),
                       da = rows(c.heads, "da"), db = rows(c.heads, "db");
      const auto per_head = [&](const char* name, double scale) {
        return HostTensor::normal(DType::f32, {c.heads}, name, scale);
      };
      const HostTensor A_log = per_head("A_log", 0.5), dt_bias = per_head("dt_bias", 1);
      const HostTensor dA_log = per_head("dA_log", 1), ddt_bias = per_head("ddt_bias", 1);
      const HostTensor twice = per_head("twice", 1), twice_bias = per_head("twice_bias", 1);
      const HostTensor states(DType::f32, {chunks, c.heads * c.dim * c.value_dim}),
          sums(DType::f32, {chunks, 2 * c.heads});
      const HostTensor starts = documents(c.documents, T, c.length, c.chunk);
      run([&](const Operations& ops, Stream& stream, const At& at) {
        DeltaRule f{at(q), at(k), at(v), at(a), at(b), at(A_log), at(dt_bias), at(y), at(states), at(starts)};
        f.length = c.length;
        f.chunk = c.chunk;
        f.heads = c.heads;
        f.key_heads = c.key_heads;
        f.dim = c.dim;
        f.value_dim = c.value_dim;
        ops.delta_rule(stream, f);
        f.y = {};
        DeltaRuleBackward g{f, at(dy), at(dq), at(dk), at(dv), at(da), at(db), at(dA_log), at(ddt_bias), at(sums)};
        ops.delta_rule_backward(stream, g);
        g.dA_log = at(twice);
        g.ddt_bias = at(twice_bias);
        g.store = Store::add;
        ops.delta_rule_backward(stream, g);
      });
      const double extra = type == DType::bf16 ? 4 : 0;
      const std::int64_t chunk = std::min(c.chunk, c.length), length = 4 * (chunk + c.dim + c.value_dim) + 32;
      for (const HostTensor* t : {&states, &y, &dq, &dk, &dv}) fits(*t, length, 1, extra);
      for (const HostTensor* t : {&da, &db}) fits(*t, length + chunk * c.value_dim, 1, extra);
      for (const HostTensor* t : {&dA_log, &ddt_bias, &twice, &twice_bias})
        fits(*t, T * c.value_dim + length, 1, extra);
    }
}

TEST_F(RecurrentOperations, GatedNorm) {
  struct Case {
    std::int64_t rows, groups, width;
    bool shared;
  };
  for (DType type : model_types)
    for (DType weight_type : {type, DType::f32})
      for (const Case& c : {Case{1, 1, 1, true}, Case{37, 1, 67, true}, Case{33, 4, 64, true}, Case{17, 3, 40, false},
                            Case{300, 2, 128, false}, Case{9, 1, 2056, true}, Case{70, 2, 512, false},
                            Case{5, 1, 520, true}, Case{3, 2, 1032, false}, Case{3, 1, 4104, true},
                            // So many parts that blocks take several turns, the last of them not full.
                            Case{2100, 5, 128, true}, Case{700, 3, 264, false}, Case{300, 1, 2056, true}})
        for (bool gate_first : {false, true}) {
          const bool many = c.rows * c.groups * c.width > 400000;
          if (many && (type != DType::bf16 || (weight_type == DType::f32) != gate_first)) continue;  // two are enough
          SCOPED_TRACE(fmt::format("{} {} rows of {} x {}", name_of(type), c.rows, c.groups, c.width));
          const std::int64_t columns = c.groups * c.width, weights = c.shared ? c.width : columns;
          const auto matrix = [&](const char* name) {
            return HostTensor::normal(type, {c.rows, columns}, name, 1, columns + 8);
          };
          const HostTensor x = matrix("x"), z = matrix("z"), y = matrix("y"), dy = matrix("dy"), dx = matrix("dx"),
                           dz = matrix("dz"), in_place = dy, other = dz;
          const HostTensor weight = HostTensor::normal(weight_type, {weights}, "weight");
          const HostTensor inverse(DType::f32, {c.rows * c.groups});
          const HostTensor dweight = HostTensor::normal(DType::f32, {weights}, "dweight"), added = dweight;
          run([&](const Operations& ops, Stream& stream, const At& at) {
            GatedNorm f{at(x), at(z), at(weight), at(y), at(inverse), c.groups, 1e-5, gate_first};
            ops.gated_norm(stream, f);
            f.y = {};
            ops.gated_norm_backward(stream, {f, at(dy), at(dx), at(dz), at(dweight)});
            ops.gated_norm_backward(stream, {f, at(in_place), at(in_place), at(other), at(added), Store::add});
          });
          for (const HostTensor* t : {&y, &inverse}) fits(*t, c.width + 16);
          // Gradients are differences of terms as large as dy * weight * inverse.
          double largest = 0;
          for (double value : want(inverse)) largest = std::max(largest, value);
          const std::vector<double> terms(static_cast<std::size_t>(c.rows * columns), 30 * largest);
          for (const HostTensor* t : {&dx, &dz, &in_place, &other}) expect(*t, c.width + 24, terms);
          const std::vector<double> magnitude(static_cast<std::size_t>(weights),
                                              8.0 * static_cast<double>(c.rows * c.groups));
          const std::int64_t after_another = std::min<std::int64_t>(c.rows * c.groups, 200);  // many are added in parts
          for (const HostTensor* t : {&dweight, &added}) expect(*t, after_another + 24, magnitude);
        }
}

// Two ranks have the first and the other columns of a row.
TEST_F(RecurrentOperations, GatedNormOfDividedRows) {
  for (DType type : model_types)
    for (const auto& [rows, width, cut] : {std::array<std::int64_t, 3>{5, 40, 24}, {33, 72, 1}, {9, 2056, 1032}})
      for (bool gate_first : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} rows of {}", name_of(type), rows, width));
        const auto matrix = [&, r = rows, w = width](const char* name) {
          return HostTensor::normal(type, {r, w}, name, 1, w + 8);
        };
        const HostTensor x = matrix("x"), z = matrix("z"), y = matrix("y"), dy = matrix("dy"), dx = matrix("dx"),
                         dz = matrix("dz");
        const HostTensor weight = HostTensor::normal(type, {width}, "weight");
        const HostTensor inverse(DType::f32, {rows}), dweight = HostTensor::normal(DType::f32, {width}, "dweight");
        // Sums over one half stand for those over the whole: another norm, but the same on both devices.
        const HostTensor squares(DType::f32, {rows, 2}), products(DType::f32, {rows, 2});
        run([&, w = width, c = cut](const Operations& ops, Stream& stream, const At& at) {
          for (const bool first : {true, false}) {
            const std::int64_t from = first ? 0 : c, count = first ? c : w - c, place = first ? 0 : 1;
            const auto of = [&](const HostTensor& all) { return at(all).slice_columns(from, count); };
            GatedNorm f{of(x), of(z), at(weight).slice_rows(from, count), {}, at(inverse), 1, 1e-5, gate_first};
            f.whole = w;
            ops.gated_norm_sums(stream, {f, {}, at(squares).slice_columns(place, 1)});
            ops.gated_norm_sums(stream, {f, of(dy), at(products).slice_columns(place, 1)});
            f.squares = at(squares).slice_columns(place, 1);
            f.y = of(y);
            ops.gated_norm(stream, f);
            ops.gated_norm_backward(stream, {f, of(dy), of(dx), of(dz), at(dweight).slice_rows(from, count), Store::add,
                                             at(products).slice_columns(place, 1)});
          }
        });
        const std::vector<double> sums(static_cast<std::size_t>(2 * rows), 30.0 * static_cast<double>(width));
        expect(squares, width + 16, sums);
        expect(products, width + 16, sums);
        for (const HostTensor* t : {&y, &inverse}) fits(*t, width + 16);
        double largest = 0;
        for (double value : want(inverse)) largest = std::max(largest, value);
        // Those of a row that is mostly elsewhere have a large inverse.
        const std::vector<double> terms(static_cast<std::size_t>(rows * width), 300 * largest * largest);
        for (const HostTensor* t : {&dx, &dz}) expect(*t, width + 24, terms);
        expect(dweight, rows + 24,
               std::vector<double>(static_cast<std::size_t>(width), 30.0 * largest * static_cast<double>(rows)));
      }
}

TEST_F(RecurrentOperations, L2Norm) {
  for (DType type : model_types)
    for (const auto& [rows, groups, width] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 1, 1}, {37, 1, 67}, {33, 4, 64}, {9, 2, 1096}}) {
      const std::int64_t columns = groups * width;
      const auto matrix = [&](const char* name) {
        return HostTensor::normal(type, {rows, columns}, name, 1, columns + 8);
      };
      const HostTensor x = matrix("x"), y = matrix("y"), dy = matrix("dy"), dx = matrix("dx"), in_place = dy;
      run([&](const Operations& ops, Stream& stream, const At& at) {
        ops.l2_norm(stream, {at(x), at(y), groups, 1e-6, 0.5});
        ops.l2_norm_backward(stream, {{at(x), {}, groups, 1e-6, 0.5}, at(dy), at(dx)});
        ops.l2_norm_backward(stream, {{at(x), {}, groups, 1e-6, 0.5}, at(in_place), at(in_place)});
      });
      fits(y, width + 8);
      // A difference of two terms of about dy / |x|; alone in its part, x has no other direction to go.
      const double scale = width == 1 ? 10 : 4 / std::sqrt(static_cast<double>(width));
      const std::vector<double> terms(static_cast<std::size_t>(rows * columns), 4 * scale);
      for (const HostTensor* t : {&dx, &in_place}) expect(*t, width + 16, terms);
    }
}

TEST_F(RecurrentOperations, LayerNorm) {
  for (DType type : model_types)
    for (DType weight_type : {type, DType::f32})
      for (const auto& [rows, width] :
           {std::pair<std::int64_t, std::int64_t>{1, 2}, {37, 67}, {600, 128}, {9, 2056}, {300, 1024}}) {
        SCOPED_TRACE(fmt::format("{} {} x {}", name_of(type), rows, width));
        const auto matrix = [&](const char* name) {
          return HostTensor::normal(type, {rows, width}, name, 1, width + 8);
        };
        const HostTensor x = matrix("x"), y = matrix("y"), dy = matrix("dy"), dx = matrix("dx"), again = y;
        const HostTensor weight = HostTensor::normal(weight_type, {width}, "weight"),
                         bias = HostTensor::normal(weight_type, {width}, "bias");
        const HostTensor mean(DType::f32, {rows}), inverse(DType::f32, {rows});
        const HostTensor dweight = HostTensor::normal(DType::f32, {width}, "dweight"), dbias = dweight;
        run([&](const Operations& ops, Stream& stream, const At& at) {
          ops.layer_norm(stream, {at(x), at(weight), at(bias), at(again), {}, {}, 1e-5});
          ops.layer_norm(stream, {at(x), at(weight), at(bias), at(y), at(mean), at(inverse), 1e-5});
          ops.layer_norm_backward(stream, {at(x), at(weight), at(mean), at(inverse), at(dy), at(dx)});
          ops.layer_norm_weight_gradient(
              stream, {at(x), at(mean), at(inverse), at(dy), at(dweight), at(dbias), Store::add, Store::write});
        });
        double largest = 0;
        for (double value : want(inverse)) largest = std::max(largest, value);
        for (const HostTensor* t : {&y, &again}) fits(*t, 2 * width + 16, std::max(1.0, largest));
        for (const HostTensor* t : {&mean, &inverse}) fits(*t, 2 * width + 16, std::max(2.0, largest * largest));
        const std::vector<double> terms(static_cast<std::size_t>(rows * width), 20 * largest);
        expect(dx, 2 * width + 24, terms);
        const std::vector<double> magnitude(static_cast<std::size_t>(width), 4.0 * static_cast<double>(rows));
        for (const HostTensor* t : {&dweight, &dbias}) expect(*t, rows + 16, magnitude);
      }
}

TEST_F(RecurrentOperations, SigmoidGate) {
  for (DType type : model_types)
    for (const auto& [rows, parts, width] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{1, 1, 1},
                                             {37, 48, 1},
                                             {33, 4, 64},
                                             {21, 3, 7},
                                             {9, 1, 2048}}) {
      SCOPED_TRACE(fmt::format("{} {} x {} x {}", name_of(type), rows, parts, width));
      const std::int64_t columns = parts * width;
      const auto matrix = [&](const char* name, std::int64_t n) {
        return HostTensor::normal(type, {rows, n}, name, 1, n + 8);
      };
      const HostTensor x = matrix("x", columns), y = matrix("y", columns), dy = matrix("dy", columns),
                       dx = matrix("dx", columns), gate = matrix("gate", parts), dgate = matrix("dgate", parts);
      const HostTensor in_place = dy, gate_in_place = gate;
      run([&](const Operations& ops, Stream& stream, const At& at) {
        ops.sigmoid_gate(stream, {at(x), at(gate), at(y)});
        ops.sigmoid_gate_backward(stream, {at(x), at(gate), at(dy), at(dx), at(dgate)});
        ops.sigmoid_gate_backward(stream, {at(x), at(gate_in_place), at(in_place), at(in_place), at(gate_in_place)});
      });
      for (const HostTensor* t : {&y, &dx, &in_place}) fits(*t, 10);
      const std::vector<double> terms(static_cast<std::size_t>(rows * parts), static_cast<double>(width) + 4);
      for (const HostTensor* t : {&dgate, &gate_in_place}) expect(*t, width + 12, terms);
    }
}

}  // namespace
}  // namespace weft
