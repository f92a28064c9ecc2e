// matmul, grouped_matmul and column sums.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tests/device/cuda/beside.h"

namespace weft {
namespace {

class Products : public Beside {};

struct Sizes {
  std::int64_t m, n, k;
};

std::vector<double> magnitudes(std::int64_t count, std::int64_t length) {
  return std::vector<double>(static_cast<std::size_t>(count), 4.0 * static_cast<double>(length) + 16);
}

constexpr Sizes matmul_sizes[] = {{1, 1, 1}, {33, 17, 5}, {64, 128, 96}, {129, 65, 257}, {8, 136, 0}, {256, 64, 64}};

// One test per size and side: compute-sanitizer takes minutes for all of them.
class MatmulOperations : public Beside, public testing::WithParamInterface<std::tuple<std::size_t, int>> {};

TEST_P(MatmulOperations, OfAllTypes) {
  const Sizes s = matmul_sizes[std::get<0>(GetParam())];
  const int sides = std::get<1>(GetParam());
  for (DType a_type : model_types)
    for (DType b_type : model_types)
      for (DType c_type : model_types)
        for (int extra = 0; extra < 4; ++extra) {
          // These cuBLASLt multiplies: its kernels are not ours to check.
          if (sanitizing() && a_type == b_type && (a_type == c_type || c_type == DType::f32)) continue;
          const bool ta = sides & 1, tb = sides & 2;
          SCOPED_TRACE(fmt::format("{}x{}x{} {}{} {} {} {} extra {}", s.m, s.n, s.k, ta, tb, name_of(a_type),
                                   name_of(b_type), name_of(c_type), extra));
          const std::int64_t pad = extra == 1 ? 8 : extra == 2 ? 3 : 0;
          const auto matrix = [&](DType type, std::int64_t rows, std::int64_t columns, const char* name) {
            return HostTensor::normal(type, {rows, columns}, name, 1, columns + pad);
          };
          if (s.k == 0 && (ta || tb)) continue;
          const HostTensor a = ta ? matrix(a_type, s.k, s.m, "a") : matrix(a_type, s.m, s.k, "a");
          const HostTensor b = tb ? matrix(b_type, s.n, s.k, "b") : matrix(b_type, s.k, s.n, "b");
          const HostTensor c = matrix(c_type, s.m, s.n, "c");
          const HostTensor bias = extra >= 2 ? HostTensor::normal(c_type, {s.n}, "bias") : HostTensor();
          const HostTensor residual = extra == 3 ? matrix(c_type, s.m, s.n, "r") : HostTensor();
          run([&](const Operations& ops, Stream& stream, const At& at) {
            ops.matmul(stream, {at(a), at(b), at(c), ta ? Transposed::yes : Transposed::no,
                                tb ? Transposed::yes : Transposed::no, extra == 1 ? Store::add : Store::write, at(bias),
                                at(residual)});
          });
          // For bf16 results cuBLASLt may round the product before it adds bias, residual or what was there.
          std::vector<double> terms = magnitudes(s.m * s.n, s.k);
          const std::vector<double> results = want(c);
          const bool twice = c_type == DType::bf16 && extra > 0;
          for (std::size_t i = 0; twice && i < terms.size(); ++i)
            terms[i] += (std::abs(results[i]) + 12) * unit_roundoff(DType::bf16) / unit_roundoff(DType::f32) /
                        static_cast<double>(s.k + 2);
          expect(c, s.k, terms);
          if (HasFailure()) return;
        }
}

INSTANTIATE_TEST_SUITE_P(Cases, MatmulOperations,
                         testing::Combine(testing::Range(std::size_t{0}, std::size(matmul_sizes)),
                                          testing::Range(0, 4)));

using Mode = GroupedMatmul::Mode;
using Groups = std::vector<std::int32_t>;

class GroupedMatmulOperations : public Beside, public testing::WithParamInterface<std::tuple<Groups, Mode>> {};

TEST_P(GroupedMatmulOperations, WithEmptyAndSmallGroups) {
  const auto& [counts, mode] = GetParam();
  std::vector<std::pair<std::int64_t, std::int64_t>> widths = {{5, 7}, {200, 264}, {64, 128}, {136, 72}};
  if (sanitizing()) widths.resize(2);  // still every kernel
  const std::int64_t most = std::max(520, *std::max_element(counts.begin(), counts.end()));
  for (const auto& [n, k] : widths)
    for (int alignment : {1, 16})
      for (DType in : model_types)
        for (DType out : model_types)
          for (int extra = 0; extra < 2; ++extra) {
            SCOPED_TRACE(fmt::format("{} groups, {} by {}, alignment {}, mode {}, {} to {}, extra {}", counts.size(), n,
                                     k, alignment, static_cast<int>(mode), name_of(in), name_of(out), extra));
            std::vector<std::int32_t> starts{0};
            for (std::int32_t count : counts)
              starts.push_back(starts.back() + (count + alignment - 1) / alignment * alignment);
            const std::int64_t rows = starts.back() + 3, g = std::ssize(counts), pad = extra == 1 ? 8 : 0;
            const HostTensor x =
                HostTensor::normal(mode == Mode::input_gradient ? out : in, {rows, k}, "x", 1, k + pad);
            const HostTensor y = HostTensor::normal(mode == Mode::forward ? out : in, {rows, n}, "y", 1, n + pad);
            const HostTensor w = HostTensor::normal(mode == Mode::weight_gradient ? out : in, {g, n, k}, "w");
            const HostTensor bias =
                mode == Mode::forward && extra == 1 ? HostTensor::normal(in, {g, n}, "b") : HostTensor();
            const HostTensor c = HostTensor::integers(counts), o = HostTensor::integers(starts);
            run([&](const Operations& ops, Stream& stream, const At& at) {
              const bool add = mode == Mode::weight_gradient && extra == 1;
              ops.grouped_matmul(
                  stream, {mode, at(x), at(w), at(y), {at(c), at(o)}, add ? Store::add : Store::write, at(bias)});
            });
            const HostTensor& result = mode == Mode::forward ? y : mode == Mode::input_gradient ? x : w;
            const std::int64_t length = mode == Mode::forward ? k : mode == Mode::input_gradient ? n : most;
            expect(result, length, magnitudes(result.elements(), length));
            if (HasFailure()) return;
          }
}

INSTANTIATE_TEST_SUITE_P(Cases, GroupedMatmulOperations,
                         testing::Combine(testing::Values(Groups{3, 0, 1, 70}, Groups{0, 0}, Groups{1},
                                                          Groups{130, 5, 0, 129, 64}, Groups{0, 300, 0},
                                                          Groups{257, 0, 520}, Groups{600}),  // the last: a long sum
                                          testing::Values(Mode::forward, Mode::input_gradient, Mode::weight_gradient)));

// More groups than a warp has threads, and rows and columns beyond one band of tiles.
TEST_F(Products, GroupedMatmulOfManyGroupsAndOfWideRows) {
  struct Case {
    std::int64_t groups, n, k;
  };
  for (const Case& c :
       sanitizing() ? std::vector<Case>{{40, 72, 64}} : std::vector<Case>{{40, 72, 64}, {3, 2312, 2312}})
    for (const Mode mode : {Mode::forward, Mode::input_gradient, Mode::weight_gradient}) {
      SCOPED_TRACE(fmt::format("{} groups, {} by {}, mode {}", c.groups, c.n, c.k, static_cast<int>(mode)));
      Groups counts, starts{0};
      for (std::int64_t g = 0; g < c.groups; ++g) {
        counts.push_back(static_cast<std::int32_t>(g % 3 == 1 ? 0 : 1 + 37 * g % 150));
        starts.push_back(starts.back() + counts.back());
      }
      const HostTensor x = HostTensor::normal(DType::bf16, {starts.back(), c.k}, "x");
      const HostTensor y = HostTensor::normal(DType::bf16, {starts.back(), c.n}, "y");
      const HostTensor w =
          HostTensor::normal(mode == Mode::weight_gradient ? DType::f32 : DType::bf16, {c.groups, c.n, c.k}, "w");
      const HostTensor many = HostTensor::integers(counts), first = HostTensor::integers(starts);
      run([&](const Operations& ops, Stream& stream, const At& at) {
        ops.grouped_matmul(stream, {mode, at(x), at(w), at(y), {at(many), at(first)}});
      });
      const HostTensor& result = mode == Mode::forward ? y : mode == Mode::input_gradient ? x : w;
      const std::int64_t length = mode == Mode::forward ? c.k : mode == Mode::input_gradient ? c.n : 150;
      expect(result, length, magnitudes(result.elements(), length));
    }
}

TEST_F(Products, ColumnSums) {
  for (DType type : model_types)
    for (DType out : {type, DType::f32})
      for (std::int64_t rows : {0, 1, 37, 1000})
        for (std::int64_t columns : {1, 8, 67, 256}) {
          SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
          const HostTensor x = HostTensor::normal(type, {rows, columns}, "x", 1, columns + 5);
          const HostTensor y = HostTensor::normal(out, {columns}, "y"), z = HostTensor::normal(out, {columns}, "z");
          const HostTensor used = HostTensor::integers({static_cast<std::int32_t>(rows / 3)});
          const HostTensor counts = HostTensor::integers({static_cast<std::int32_t>(rows / 2), 0, 1 < rows ? 1 : 0});
          const HostTensor offsets =
              HostTensor::integers({0, static_cast<std::int32_t>(rows / 2), static_cast<std::int32_t>(rows / 2),
                                    static_cast<std::int32_t>(rows)});
          const HostTensor sums = HostTensor::normal(out, {3, columns}, "sums");
          run([&](const Operations& ops, Stream& stream, const At& at) {
            ops.column_sum(stream, {at(x), at(y), Store::add, {}});
            ops.column_sum(stream, {at(x), at(z), Store::write, at(used)});
            ops.grouped_column_sum(stream, {at(x), at(sums), {at(counts), at(offsets)}, Store::write});
          });
          for (const HostTensor* result : {&y, &z, &sums}) expect(*result, rows, magnitudes(result->elements(), rows));
        }
}

}  // namespace
}  // namespace weft
