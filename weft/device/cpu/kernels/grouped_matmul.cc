// Products of groups of rows, one per expert. Groups may be very uneven, so the team shares tiles, not groups: all
// results lie on one line, group after group, band of rows after band, column tile after column tile, each weighted by
// its work; every member takes one stretch of the line.
#include "weft/device/argument_checks.h"
#include "weft/device/cpu/kernels/blocked_gemm.h"
#include "weft/device/cpu/kernels/dispatch.h"
#include "weft/device/cpu/kernels/micro_gemm.h"
#include "weft/device/operations/matmul.h"

namespace weft::WEFT_ISA {

namespace {

using Mode = GroupedMatmul::Mode;

// Rows of a result that a column tile of the line covers: enough to make packing the other factor cheap.
constexpr std::int64_t band_rows = 144 * tile_rows;

void require_fit(bool condition, const char* why) { require(condition, "grouped_matmul", why); }

// The product of one group.
Product product_of(const GroupedMatmul& op, std::int64_t group) {
  const std::int64_t n = op.w.shape[1], k = op.w.shape[2];
  const std::int64_t count = static_cast<const std::int32_t*>(op.groups.counts.data)[group];
  const std::int64_t first = static_cast<const std::int32_t*>(op.groups.offsets.data)[group];
  require_fit(count >= 0 && first >= 0 && first + count <= op.x.shape[0], "a group lies outside the rows");
  const auto at = [](const Tensor& tensor, std::int64_t elements) {
    return static_cast<void*>(static_cast<std::byte*>(tensor.data) +
                              elements * static_cast<std::int64_t>(size_of(tensor.dtype)));
  };
  void* x_g = at(op.x, first * op.x.stride);
  void* y_g = at(op.y, first * op.y.stride);
  void* w_g = at(op.w, group * op.w.stride);
  Product p;
  p.varying = true;
  switch (op.mode) {
    case Mode::forward:
      p.m = count, p.n = n, p.k = k;
      p.a = {x_g, op.x.dtype, op.x.stride, true};
      p.b = {w_g, op.w.dtype, k, true};
      p.c = y_g, p.c_dtype = op.y.dtype, p.c_stride = op.y.stride;
      if (op.bias.given()) p.bias = at(op.bias, group * n), p.bias_dtype = op.bias.dtype;
      break;
    case Mode::input_gradient:
      p.m = count, p.n = k, p.k = n;
      p.a = {y_g, op.y.dtype, op.y.stride, true};
      p.b = {w_g, op.w.dtype, k, false};
      p.c = x_g, p.c_dtype = op.x.dtype, p.c_stride = op.x.stride;
      break;
    case Mode::weight_gradient:
      p.m = n, p.n = k, p.k = count;
      p.a = {y_g, op.y.dtype, op.y.stride, false};
      p.b = {x_g, op.x.dtype, op.x.stride, false};
      p.c = w_g, p.c_dtype = op.w.dtype, p.c_stride = k;
      p.add = op.store == Store::add;
      break;
  }
  return p;
}

// Work of one column tile of a band of m rows: its products, and about 20 of them for each element packed or stored.
std::int64_t weight(const Product& p, std::int64_t m) {
  if (p.add && p.k == 0) return 0;
  return (m + tile_rows) * (p.k + 20) + 20 * p.k;
}

}  // namespace

void grouped_matmul(Stream& stream, const GroupedMatmul& op) {
  check_arguments("grouped_matmul", op);
  const std::int64_t groups = op.w.shape[0];
  const bool in_double = op.x.dtype == DType::f64 || op.y.dtype == DType::f64 || op.w.dtype == DType::f64;
  const std::int64_t step = in_double ? tile_columns<double> : tile_columns<float>;

  // visit(product, first row, rows, weight of a tile, tiles) for every band of every group, in order
  const auto for_each_band = [&](const auto& visit) {
    for (std::int64_t g = 0; g < groups; ++g) {
      const Product p = product_of(op, g);
      const std::int64_t tiles = (p.n + step - 1) / step;
      for (std::int64_t row = 0; row < p.m; row += band_rows) {
        const std::int64_t rows = std::min(band_rows, p.m - row);
        visit(p, row, rows, weight(p, rows), tiles);
      }
    }
  };
  std::int64_t total = 0;
  for_each_band([&](const Product&, std::int64_t, std::int64_t, std::int64_t each, std::int64_t tiles) {
    total += each * tiles;
  });
  if (total == 0) return;

  Team& team = team_of(stream);
  const std::int64_t members = std::clamp<std::int64_t>(total * step / 50000, 1, team.size());
  const auto work = [&](int member) {
    if (member >= members) return;
    // Tiles whose place on the line begins in [low, high).
    const std::int64_t low = total / members * member;
    const std::int64_t high = member + 1 == members ? total : total / members * (member + 1);
    std::int64_t place = 0;
    for_each_band([&](const Product& p, std::int64_t row, std::int64_t rows, std::int64_t each, std::int64_t tiles) {
      const auto tile_at = [&](std::int64_t bound) {
        return each == 0 ? 0 : std::clamp<std::int64_t>((bound - place + each - 1) / each, 0, tiles);
      };
      const std::int64_t begin = place >= low ? 0 : tile_at(low), end = tile_at(high);
      place += each * tiles;
      if (begin < end) multiply(part_of(p, row, row + rows, std::min(begin * step, p.n), std::min(end * step, p.n)));
    });
  };
  if (members == 1) return work(0);
  team.run(std::cref(work));
}

}  // namespace weft::WEFT_ISA
